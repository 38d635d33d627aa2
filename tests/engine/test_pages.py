"""Pages: sums see every flip, nothing is lost or held twice, freed pages come back soon."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.tiny import (
    CONFIG,
    alone,
    answers,
    drain,
    endings,
    listened,
    request,
    tiny_model,
)
from tocsin.core.errors import CapacityError, ContractError
from tocsin.core.requests import Finish, Request
from tocsin.engine.config import EngineConfig
from tocsin.engine.engine import ReferenceEngine
from tocsin.engine.pages import PagePool


def pool(pages: int = 6) -> PagePool:
    """Two layers, 8 values a row, 4 tokens a page."""
    return PagePool(pages=pages, depth=2, width=8, page_size=4)


def test_sums_are_those_of_what_was_written() -> None:
    """After a run every page in use verifies, and holds something."""
    engine = ReferenceEngine(tiny_model(), config=CONFIG)
    engine.submit(request("a", 11, new=20))
    for _ in range(9):
        engine.step()
    pages = engine.pages.table("a")
    assert len(pages) == 3
    assert all(bool(engine.pages.data[page].any()) for page in pages)
    assert engine.pages.verify(pages) == ()


def test_any_flipped_bit_is_seen() -> None:
    """Each bit of one value, K and V, written rows and stale ones: the page is named."""
    engine = listened(tiny_model())
    engine.submit(request("a", 11, new=20))
    for _ in range(5):
        engine.step()
    page = engine.pages.table("a")[1]
    for half, offset in ((0, 0), (1, 2), (1, CONFIG.page_size - 1)):
        word = engine.pages.data[page, 1, half, offset, 3:4].view(torch.int32)
        for bit in range(32):
            mask = (1 << bit) - (1 << 32 if bit == 31 else 0)
            word ^= mask
            assert engine.pages.verify((page, 1, page)) == (page,)
            word ^= mask
    assert engine.pages.verify((page,)) == ()


@pytest.mark.parametrize(("first", "second"), [(0, 1), (3, 7), (8, 12)])
def test_two_words_of_a_row_that_change_places_are_seen(first: int, second: int) -> None:
    """Two halves of a key swapped, or two heads: the same words, the same plain sum."""
    engine = listened(tiny_model())
    engine.submit(request("a", 11, new=20))
    for _ in range(5):
        engine.step()
    page = engine.pages.table("a")[0]
    words = engine.pages.data[page, 1, 0, 2].view(torch.int64)
    assert len(words) == 16
    words[[first, second]] = words[[second, first]].clone()
    assert engine.pages.verify((page,)) == (page,)


def test_zeroed_pages_verify() -> None:
    """Zero is the one way to make sums from memory."""
    pages = pool()
    pages.data[3] = float("nan")
    assert pages.verify((2, 3)) == (3,)
    pages.zero((3,))
    assert pages.verify((2, 3)) == ()
    assert not pages.data.isnan().any()


def test_the_page_freed_last_is_given_out_first() -> None:
    """Whatever a request leaves behind meets the next one."""
    pages = pool()
    pages.allocate("a")
    pages.allocate("b")
    pages.allocate("a")
    first, *_ = pages.table("a")
    pages.release("a")
    assert pages.allocate("c") == first


def test_an_epoch_counts_allocations() -> None:
    """A stale reference can be told from a fresh one."""
    pages = pool()
    page = pages.allocate("a")
    before = pages.tag(page).epoch
    pages.release("a")
    assert pages.tag(page).owner == ""
    assert pages.allocate("b") == page
    assert pages.tag(page).epoch == before + 1


def test_cached_prefixes_are_evicted_oldest_first() -> None:
    """A full pool gives up what nobody holds, and only that."""
    pages = pool(pages=3)
    for name in ("a", "b"):
        page = pages.allocate(name)
        pages.publish(name, tuple(range(4)) if name == "a" else tuple(range(9, 13)), 4)
        pages.release(name)
    assert pages.counts() == {"free": 1, "used": 0, "cached": 2, "quarantined": 0}
    pages.allocate("c")
    pages.allocate("c")  # evicts a's
    assert pages.adopt("d", tuple(range(9, 14)), 4) == 4
    assert pages.table("d") == (page,)
    with pytest.raises(CapacityError, match="all 3 are in use"):
        pages.allocate("c")
    assert pages.audit()["conserved"]


def test_only_full_prompt_pages_are_shared() -> None:
    """A page that the answer goes on writing stays private."""
    pages = pool()
    for _ in range(2):
        pages.allocate("a")
    pages.publish("a", tuple(range(7)), 7)
    assert [pages.tag(page).owner for page in pages.table("a")] == ["shared", "a"]
    assert pages.adopt("b", tuple(range(7)), 4) == 4
    assert pages.tag(pages.table("a")[0]).holders == ("a", "b")


def test_a_shared_page_outlives_its_first_holder() -> None:
    """It is given up by one and still read by the other."""
    pages = pool()
    page = pages.allocate("a")
    pages.publish("a", tuple(range(4)), 4)
    pages.adopt("b", tuple(range(5)), 4)
    pages.release("a")
    assert pages.counts() == {"free": 5, "used": 1, "cached": 0, "quarantined": 0}
    assert pages.tag(page).holders == ("b",)
    assert pages.audit()["conserved"]
    pages.release("b")
    assert pages.counts() == {"free": 5, "used": 0, "cached": 1, "quarantined": 0}


def test_quarantine_takes_all_pages_from_all_holders_and_gives_clean_ones_back() -> None:
    """The index forgets the page, its holders lose theirs, the memory is zero again."""
    pages = pool()
    for _ in range(2):
        pages.allocate("a")
    pages.publish("a", tuple(range(8)), 8)
    pages.adopt("b", tuple(range(9)), 4)
    bad, good = pages.table("a")
    pages.data[bad] = float("nan")
    holders, kept = pages.quarantine((bad,))
    assert (holders, kept) == (("a", "b"), ())
    assert pages.running() == ()
    assert not pages.data.isnan().any()
    assert pages.tag(bad).owner == ""
    assert pages.adopt("c", tuple(range(9)), 4) == 0
    assert pages.counts() == {"free": 5, "used": 0, "cached": 1, "quarantined": 0}
    assert pages.tag(good).owner == "shared"
    assert pages.audit()["conserved"]


def test_a_page_that_does_not_hold_zeros_stays_out() -> None:
    """Broken memory is not given out again, and is counted."""
    pages = pool()
    page = pages.allocate("a")
    honest = pages.verify
    pages.verify = lambda asked: (page,) if page in asked else honest(asked)  # type: ignore[method-assign]
    assert pages.quarantine((page,)) == (("a",), (page,))
    assert pages.counts()["quarantined"] == 1
    assert pages.audit()["conserved"]
    assert {pages.allocate("b") for _ in range(5)} == set(range(1, 7)) - {page}


def test_the_audit_can_say_no() -> None:
    """A page in two places, or held without a table entry, is reported."""
    pages = pool()
    page = pages.allocate("a")
    pages._free.append(page)
    assert not pages.audit()["conserved"]
    pages._free.pop()
    pages._pages[page].holders["ghost"] = None
    assert any("ghost" in problem for problem in pages.audit()["problems"])


def test_a_miscounted_page_is_given_to_the_next_who_asks_and_the_audit_sees_it() -> None:
    """A lost reference: two tables name one page, and only one of them is right."""
    pages = pool()
    page, other = pages.allocate("a"), pages.allocate("a")
    pages.miscount(page)
    assert pages.tag(page).owner == ""
    assert not pages.audit()["conserved"]
    assert pages.allocate("b") == page
    assert pages.table("a") == (page, other)
    assert pages.tag(page).owner == "b"


def test_a_miscounted_page_is_recounted_only_while_it_is_free() -> None:
    """Undone, the books are as they were; once it is somebody's it stays his."""
    pages = pool()
    page = pages.allocate("a")
    pages.advance("a", 3)
    tag, before = pages.tag(page), pages.audit()
    pages.miscount(page)
    pages.recount(page, tag)
    assert (pages.tag(page), pages.audit()) == (tag, before)
    pages.recount(page, tag)
    assert pages.audit() == before
    pages.miscount(page)
    assert pages.allocate("b") == page
    pages.recount(page, tag)
    assert pages.tag(page).owner == "b"


def test_quarantine_finds_who_reads_a_page_that_counts_nobody() -> None:
    """Tables are what is read: whoever is named by one loses the page, counted or not."""
    pages = pool()
    page, kept = pages.allocate("a"), pages.allocate("b")
    pages.miscount(page)
    assert pages.quarantine((page,)) == (("a",), ())
    assert pages.table("a") == ()
    assert pages.table("b") == (kept,)
    assert pages.audit()["conserved"]


def test_rows_must_be_whole_words() -> None:
    """The sums are of 64-bit words."""
    with pytest.raises(ContractError, match="multiple of 8"):
        PagePool(pages=2, depth=1, width=3, page_size=4)


TINY = tiny_model()
ASKED = [request(f"r{n}", 1 + 6 * n, new=1 + 3 * n, start=n) for n in range(7)]
EXPECTED = {one.request_id: alone(TINY, one) for one in ASKED}


@settings(max_examples=20)
@given(
    order=st.permutations(range(7)),
    pauses=st.lists(st.integers(0, 6), min_size=7, max_size=7),
    cancels=st.dictionaries(st.integers(0, 6), st.integers(0, 40), max_size=3),
    preempts=st.dictionaries(st.integers(0, 6), st.integers(0, 40), max_size=3),
    pages=st.integers(8, 14),
    prefix_cache=st.booleans(),
)
def test_churn_loses_no_page_and_changes_no_token(
    order: list[int],
    pauses: list[int],
    cancels: dict[int, int],
    preempts: dict[int, int],
    pages: int,
    prefix_cache: bool,
) -> None:
    """Arrivals, cancels, preemptions and page shortage in any order; audited after every step."""
    config = EngineConfig(
        slots=4,
        page_size=8,
        pages=pages,
        max_model_len=64,
        prefill_chunk=16,
        prefix_cache=prefix_cache,
    )
    engine = ReferenceEngine(TINY, config=config)
    events = []
    waiting = [(sum(pauses[: n + 1]), ASKED[index]) for n, index in enumerate(order)]
    for step in range(600):
        while waiting and waiting[0][0] <= step:
            engine.submit(waiting.pop(0)[1])
        for index in (index for index, at in cancels.items() if at == step):
            engine.cancel(f"r{index}")
        for index in (index for index, at in preempts.items() if at == step):
            engine.preempt(f"r{index}")
        events += engine.step()
        audit = engine.audit()
        assert audit["conserved"], audit["problems"]
        if not waiting and not engine.has_work:
            break
    assert not engine.has_work
    assert engine.stats().pages_used == 0
    found, ended = answers(events), endings(events)
    assert sorted(ended) == [f"r{n}" for n in range(7)]
    for name, ending in ended.items():
        tokens = found.get(name, [])
        if ending.finish is not Finish.CANCELLED:
            assert tokens == EXPECTED[name]
        assert tokens == EXPECTED[name][: len(tokens)]


def test_a_crowd_in_a_pool_for_one_loses_no_page() -> None:
    """Requests that are preempted while their step is planned get no pages with it."""
    config = EngineConfig(slots=4, page_size=8, pages=8, max_model_len=64, prefill_chunk=16)
    engine = ReferenceEngine(TINY, config=config)
    for one in ASKED:
        engine.submit(one)
    events = []
    for _ in range(400):
        events += engine.step()
        assert engine.audit()["conserved"], engine.audit()["problems"]
        if not engine.has_work:
            break
    assert answers(events) == EXPECTED


def test_the_oldest_request_always_goes_on() -> None:
    """With room for one long request only, all four end, in order of arrival."""
    config = EngineConfig(slots=4, page_size=8, pages=8, max_model_len=64, prefill_chunk=16)
    engine = ReferenceEngine(TINY, config=config)
    asked = [Request(f"r{n}", request("x", 20, start=n).prompt_ids, 40) for n in range(4)]
    for one in asked:
        engine.submit(one)
    events = drain(engine)
    assert list(endings(events)) == ["r0", "r1", "r2", "r3"]
    for one in asked:
        assert answers(events)[one.request_id] == alone(TINY, one)


def test_a_request_for_which_too_few_pages_work_ends_with_an_error() -> None:
    """Pages kept out for good lower what can be served: said at once, never waited for."""
    config = EngineConfig(slots=4, page_size=8, pages=8, max_model_len=64, prefill_chunk=16)
    engine = ReferenceEngine(TINY, config=config)
    pages = engine.pages
    honest = pages.verify
    pages.verify = lambda asked: tuple(asked)  # type: ignore[method-assign]
    pages.quarantine((2, 3))
    pages.verify = honest  # type: ignore[method-assign]
    engine.submit(request("long", 40, new=20))
    engine.submit(request("short", 20, new=8))
    events = drain(engine)
    ending = endings(events)["long"]
    assert ending.finish is Finish.ERROR
    assert "6 of 8 work, the request needs 8" in ending.message
    assert endings(events)["short"].finish is Finish.LENGTH
    assert engine.audit()["conserved"]
