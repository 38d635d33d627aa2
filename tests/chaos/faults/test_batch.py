"""Faults of a batch and of the books behind it: what the step is told, and what stays right."""

from typing import Any

import pytest
import torch

from tocsin.core.calls import BatchCall

CLEAN_IDS, CLEAN_POSITIONS = [11, 0, 22], [6, 0, 1]
CLEAN_TABLE = [[3, 5], [0, -1], [7, -1]]


def _batch(worker: Any) -> BatchCall:
    call = worker.call(BatchCall)
    assert isinstance(call, BatchCall)
    return call


@pytest.mark.parametrize("offset", [-1, 1, 5])
def test_a_position_moves_beside_the_cache_of_one_live_row(worker: Any, offset: int) -> None:
    """The tokens and the other rows stay; the ledger's own positions too."""
    worker.arm("kv.off_by_one_pos", offset=offset)
    worker.decode()
    call = _batch(worker)
    moved = (call.position_ids - torch.tensor(CLEAN_POSITIONS)).tolist()
    assert sorted(moved) == sorted([0, 0, offset])
    assert moved[1] == 0
    assert call.position_ids_expected.tolist() == CLEAN_POSITIONS
    assert call.input_ids.tolist() == CLEAN_IDS


def test_a_position_that_does_not_move_is_refused(worker: Any) -> None:
    """It would fire without evidence for ever."""
    worker.arm("kv.off_by_one_pos", offset=0)
    worker.decode()
    assert "offset is 0" in worker.status().error


def test_rows_are_swapped_whole_and_keep_their_request_ids(worker: Any) -> None:
    """Token, position and pages of each are the other's; the idle row stays idle."""
    worker.arm("batch.ragged_swap")
    worker.decode()
    call = _batch(worker)
    assert call.input_ids.tolist() == [22, 0, 11]
    assert call.position_ids.tolist() == [1, 0, 6]
    assert call.block_table is not None
    assert call.block_table.tolist() == [CLEAN_TABLE[2], CLEAN_TABLE[1], CLEAN_TABLE[0]]
    assert call.request_ids == ("a", "", "b")
    assert call.input_ids_expected.tolist() == CLEAN_IDS


def test_a_swap_needs_two_requests(worker: Any) -> None:
    """With one there is nobody to be taken for."""
    worker.request_ids = ("a", "", "")
    worker.arm("batch.ragged_swap")
    worker.decode()
    assert worker.status().state == "armed"


def test_an_empty_step_has_rows_and_no_token(worker: Any) -> None:
    """The evidence is the shape."""
    worker.arm("batch.empty")
    worker.decode()
    assert _batch(worker).input_ids.shape == (0,)
    evidence = worker.status().evidence
    assert (evidence.before, evidence.after) == ("[3]", "[0]")


@pytest.mark.parametrize(
    ("kind", "dtype", "ids"),
    [("float32", torch.float32, [11.0, 0.0, 22.0]), ("stride", torch.int64, [11, 0, 0])],
)
def test_ids_arrive_in_another_form(
    worker: Any, kind: str, dtype: torch.dtype, ids: list[float]
) -> None:
    """The right numbers in the wrong type, or the right type read with the wrong stride."""
    worker.arm("batch.bad_dtype", kind=kind)
    worker.decode()
    call = _batch(worker)
    assert (call.input_ids.dtype, call.input_ids.tolist()) == (dtype, ids)
    assert call.input_ids_expected.tolist() == CLEAN_IDS


def test_a_form_that_is_not_known_is_refused(worker: Any) -> None:
    """With the list of the known ones."""
    worker.arm("batch.bad_dtype", kind="int4")
    worker.decode()
    assert "expected float32 or stride" in worker.status().error


def test_what_a_check_cannot_read_is_nothing_that_the_step_reads(worker: Any) -> None:
    """The record of the ledger's tokens alone is taken away."""
    worker.arm("check.self_fault")
    worker.decode()
    call = _batch(worker)
    assert call.input_ids_expected.is_meta
    assert call.input_ids.tolist() == CLEAN_IDS
    assert call.position_ids.tolist() == CLEAN_POSITIONS


def test_a_freed_page_is_still_in_its_table_and_is_given_back_on_healing(worker: Any) -> None:
    """The books say that it is nobody's; the tag that comes back is the one from before."""
    before = dict(worker.pages.tags)
    tables = dict(worker.pages.tables)
    order = worker.arm("kv.use_after_free")
    worker.decode()
    (request,) = worker.status().evidence.requests
    page = worker.pages.table(request)[-1]
    assert worker.pages.tag(page).owner == ""
    assert worker.pages.tables == tables
    worker.armoury.disarm(order.occurrence)
    assert worker.status().state == "healed"
    assert worker.pages.tags == before


def test_a_freed_page_that_somebody_was_given_is_not_taken_from_him(worker: Any) -> None:
    """Healing then waits until the first request has let go of it."""
    order = worker.arm("kv.use_after_free")
    worker.decode()
    (request,) = worker.status().evidence.requests
    page = worker.pages.table(request)[-1]
    taken = worker.pages.tags[page].__class__("c", 9, 0, 1, ("c",))
    worker.pages.tags[page] = taken
    worker.armoury.disarm(order.occurrence)
    assert worker.pages.tag(page) == taken
    assert worker.status().state == "unhealed"
    worker.pages.tables[request] = ()
    worker.armoury.disarm(order.occurrence)
    assert worker.status().state == "healed"


def test_a_page_of_the_prefix_index_is_not_freed(worker: Any) -> None:
    """Its holders are counted otherwise."""
    worker.pages.tags[5] = worker.pages.tags[7] = worker.pages.tags[3]
    worker.arm("kv.use_after_free")
    worker.decode()
    assert worker.status().state == "armed"
