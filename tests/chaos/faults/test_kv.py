"""Faults of the paged KV memory: where they strike, and what they leave standing."""

from typing import Any

import pytest
import torch

from tocsin.core.calls import BatchCall, KVUpdateCall
from tocsin.core.terms import Phase


def _table(worker: Any) -> torch.Tensor:
    return worker.call(BatchCall).block_table


def test_a_flipped_bit_lies_in_a_written_token_of_a_live_request(worker: Any) -> None:
    """Only what is read can hurt; the content sum of exactly that page is wrong."""
    worker.arm("kv.bitflip", tensor="k", bit=0, depth=1)
    before = worker.pages.data.clone()
    worker.decode()
    assert worker.pages.verify(range(12)) in ((5,), (7,))
    place = worker.status().evidence.place
    assert " depth 1 K[" in place
    assert place.endswith("bit 0")
    written = {(5, 2), (7, 1)}
    changed = {
        (int(page), int(offset))
        for page, depth, half, offset, _ in (worker.pages.data != before).nonzero()
        if (int(page), int(offset)) not in written
    }
    assert changed in ({(5, 0)}, {(5, 1)}, {(7, 0)})


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_poison_lies_behind_the_tokens_in_the_value_half(worker: Any, value: str) -> None:
    """The place is masked, unwritten in this step, and V: where 0 * NaN leaks."""
    worker.arm("kv.poisoned_page", value=value)
    worker.decode()
    bad = (~torch.isfinite(worker.pages.data)).nonzero().tolist()
    assert len(bad) == 1
    page, _, half, offset, _ = bad[0]
    assert page in (5, 7)
    assert half == 1
    assert offset == worker.pages.page_size - 1
    assert value in worker.status().evidence.after


def test_a_race_puts_the_neighbours_token_into_the_victims_slot(worker: Any) -> None:
    """After the update the victim's slot holds the racer's K and V of every layer."""
    worker.arm("kv.write_race")
    worker.decode()
    call = worker.call(KVUpdateCall)
    slots = [int(slot) for slot in call.slot_mapping if slot >= 0]
    (page_a, offset_a), (page_b, offset_b) = (divmod(slot, 4) for slot in slots)
    data = worker.pages.data
    assert torch.equal(data[page_a, :, :, offset_a], data[page_b, :, :, offset_b])
    wrong = worker.pages.verify(range(12))
    assert wrong in ((page_a,), (page_b,))
    assert set(worker.status().evidence.requests) == {"a", "b"}


def test_a_race_needs_two_requests(worker: Any) -> None:
    """One writer cannot race."""
    worker.request_ids = ("a", "", "")
    worker.arm("kv.write_race")
    worker.decode()
    assert worker.status().state == "armed"


def test_an_alias_makes_two_rows_write_one_page(worker: Any) -> None:
    """The entry that one row writes through names the other's private page."""
    tables = dict(worker.pages.tables)
    worker.arm("kv.page_alias")
    worker.decode()
    table = _table(worker)
    assert (int(table[0, 1]), int(table[2, 0])) in ((7, 7), (5, 5))
    assert worker.pages.tables == tables


def test_a_shared_page_is_no_alias(worker: Any) -> None:
    """Pages of the prefix index have several holders by right."""
    worker.pages.tags[7] = worker.pages.tags[3]
    worker.arm("kv.page_alias")
    worker.decode()
    assert worker.status().state == "armed"


def test_a_stale_entry_names_a_freed_page_of_another_epoch(worker: Any) -> None:
    """Page 9 was used and freed; pages that never were used are not stale."""
    worker.arm("kv.stale_after_preempt")
    worker.decode()
    table = _table(worker)
    assert (int(table[0, 1]), int(table[2, 0])) in ((9, 7), (5, 9))
    assert worker.status().evidence.after == "page 9 epoch 4"


def test_a_request_that_came_back_is_given_its_own_old_page(worker: Any) -> None:
    """With a real preemption at hand the fault uses it: the entry keeps the page from before."""
    del worker.pages.tags[9]
    worker.arm("kv.stale_after_preempt")
    worker.decode()
    assert worker.status().state == "armed"
    worker.pages.tables["b"] = (8,)
    worker.pages.tags[8] = worker.pages.tags.pop(7)
    worker.decode()
    assert worker.status().state == "fired"
    assert "before it was preempted" in worker.status().evidence.place
    assert int(_table(worker)[2, 0]) == 7


@pytest.mark.parametrize(
    "kind", ["kv.bitflip", "kv.poisoned_page", "kv.stale_after_preempt", "batch.oob_token"]
)
def test_a_fault_of_a_decoding_row_waits_through_prefill(worker: Any, kind: str) -> None:
    """A chunk of several tokens for one row is no decode step; the next step is."""
    worker.arm(kind)
    worker.armoury.tick(worker.step)
    tokens = torch.arange(4)
    chunk = BatchCall(
        input_ids=tokens,
        input_ids_expected=tokens,
        position_ids=tokens,
        position_ids_expected=tokens,
        vocab_size=50,
        request_ids=("a",),
        block_table=torch.tensor([[3, 5]]),
    )
    worker.seams.emit(chunk, Phase.BEFORE)
    assert worker.status().state == "armed"
    worker.decode()
    assert worker.status().state == "fired"


def test_a_leak_leaves_pages_with_nobody_until_they_are_given_back(worker: Any) -> None:
    """They are counted for a request that is not there; the books say so, and then do not."""
    free = [page for page in range(1, 12) if not worker.pages.tag(page).owner]
    order = worker.arm("kv.leak_refcount", pages=3)
    worker.decode()
    lost = [page for page in free if worker.pages.tag(page).owner]
    assert len(lost) == 3
    assert len({worker.pages.tag(page).owner for page in lost}) == 1
    worker.armoury.disarm(order.occurrence)
    assert [page for page in range(1, 12) if not worker.pages.tag(page).owner] == free


def test_a_collision_exchanges_pages_of_prefixes_of_one_length(worker: Any) -> None:
    """Each entry leads to the other's page; a healed index is the one that was."""
    before = dict(worker.pages.prefix_index)
    order = worker.arm("kv.prefix_hash_collision")
    worker.decode()
    now = dict(worker.pages.prefix_index)
    assert now.keys() == before.keys()
    assert sorted(now.values()) == sorted(before.values())
    assert all(now[key] != before[key] for key in before)
    worker.armoury.disarm(order.occurrence)
    assert worker.pages.prefix_index == before


def test_a_collision_is_healed_for_what_is_left_of_it(worker: Any) -> None:
    """An entry that the checks dropped stays dropped; one whose page is gone is forgotten."""
    order = worker.arm("kv.prefix_hash_collision")
    worker.decode()
    dropped, other = worker.pages.prefix_index
    del worker.pages.prefix_index[dropped]
    del worker.pages.prefixes[4 if worker.pages.prefix_index[other] == 3 else 3]
    worker.armoury.disarm(order.occurrence)
    assert worker.pages.prefix_index == {}
    assert worker.status().state == "healed"


def test_one_prefix_of_a_length_cannot_collide(worker: Any) -> None:
    """There is no other page that it could lead to."""
    worker.pages.prefix_index = {(1, 2, 3, 4): 3}
    worker.arm("kv.prefix_hash_collision")
    worker.decode()
    assert worker.status().state == "armed"


def test_the_pool_shrinks_and_grows_again(worker: Any) -> None:
    """By default to what the longest request needs and some room; or as the spec says."""
    order = worker.arm("kv.eviction_storm")
    beside = worker.pages.tables.pop("beside")
    worker.decode()
    assert worker.pages.limit is None, "nobody would lose a page by it"
    worker.pages.tables["beside"] = beside
    worker.decode()
    assert worker.pages.limit == 2 + 4
    worker.armoury.disarm(order.occurrence)
    assert worker.pages.limit is None


def test_a_pool_of_no_pages_is_refused(worker: Any) -> None:
    """Nobody could be served, and nothing would be shown by it."""
    worker.arm("kv.eviction_storm", left=0)
    worker.decode()
    assert "at least 1" in worker.status().error
    assert worker.pages.limit is None
