"""Sums are kept while somebody listens, pages compared on the way; nothing under no profile."""

from collections.abc import Callable

import pytest
import torch

from tests.engine.test_written import assert_states
from tests.engine.tiny import CONFIG, answers, drain, listened, prompt, request, tiny_model
from tocsin.checker import native
from tocsin.core.calls import KVReadCall, VarlenAttentionCall
from tocsin.core.requests import Request
from tocsin.core.terms import Operator, Phase
from tocsin.engine import fused
from tocsin.engine.engine import ReferenceEngine


@pytest.fixture(autouse=True, params=["operators", "torch"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With the operators where they could be built, and with torch alone."""
    if request.param == "torch":
        monkeypatch.setattr(fused, "DTYPES", frozenset())
    elif not native.available():
        pytest.skip(native.reason())
    return str(request.param)


def listen(engine: ReferenceEngine) -> tuple[list[KVReadCall], Callable[[], None]]:
    """Hear of the pages; returns what was heard, and the function that ends it."""
    heard: list[KVReadCall] = []
    return heard, engine.seams.add_check(Operator.KV_READ, Phase.BEFORE, heard.append)


def changed(heard: list[KVReadCall]) -> set[int]:
    """Pages that had another sum than the recorded one in any record."""
    return {
        page
        for call in heard
        for page in call.pages[(call.sums != call.sums_expected).any(dim=1)].tolist()
    }


def flip(engine: ReferenceEngine, page: int) -> None:
    """The lowest bit of one value: no numerical check could see it."""
    engine.pages.data[page, 1, 1, 3, 5:6].view(torch.int32).bitwise_xor_(1)


def test_nothing_is_summed_while_nobody_listens() -> None:
    """Under `off` the pages get neither sums nor states, and say so; no alarm follows from it."""
    engine = ReferenceEngine(tiny_model(), config=CONFIG)
    engine.submit(request("r0", 20, new=9))
    for _ in range(5):
        engine.step()
    pool = engine.pages
    assert not pool.sums.any()
    assert not any(state.any() for state in (*pool.states, pool.marks))
    assert len(pool.unsummed) == engine._ledger.sequences["r0"].computed
    assert pool.verify(pool.table("r0")) == ()


@pytest.mark.parametrize("heard_first", [0, 4])
def test_whoever_begins_to_listen_finds_all_pages_summed(heard_first: int) -> None:
    """Off for some steps, in prefill, decoding and across pages: no alarm, the right states."""
    right = answers(drain_all(listened(tiny_model())))
    engine = ReferenceEngine(tiny_model(), config=CONFIG)
    heard, stop = listen(engine)
    if not heard_first:
        stop()
    submit(engine)
    events = []
    for step in range(400):
        if not engine.has_work:
            break
        if step == heard_first:
            stop()
        if step in (7, 15):
            heard, stop = listen(engine)
        if step == 11:
            stop()
        events += engine.step()
        if 7 <= step < 11 or step >= 15:
            assert not engine.pages.unsummed
            assert_states(engine)
    assert answers(events) == right
    assert heard
    assert changed(heard) == set()


def submit(engine: ReferenceEngine) -> None:
    engine.submit(Request("first", prompt(40), 12))
    engine.submit(Request("second", prompt(40) + prompt(5, 1), 18))
    engine.submit(request("third", 3, new=30, start=4))


def drain_all(engine: ReferenceEngine) -> list[object]:
    submit(engine)
    return list(drain(engine))


def test_a_cached_prefix_that_nobody_vouched_for_is_not_adopted() -> None:
    """It was published under `off`; once somebody listens, the prompt is computed again."""
    engine = ReferenceEngine(tiny_model(), config=CONFIG)
    engine.submit(Request("first", prompt(40), 2))
    list(drain(engine))
    assert engine.pages.counts()["cached"]
    heard, _ = listen(engine)
    engine.submit(request("other", 3, new=2))
    list(drain(engine))
    engine.submit(Request("second", prompt(40), 2))
    list(drain(engine))
    assert engine.stats().prefix_hits == 0
    assert engine.audit()["conserved"]
    assert changed(heard) == set()


def test_a_flip_after_the_switch_is_found() -> None:
    """Pages written under `off` are watched from the first step that somebody listens in."""
    engine = ReferenceEngine(tiny_model(), config=CONFIG)
    engine.submit(request("r0", 30, new=20))
    for _ in range(5):
        engine.step()
    heard, _ = listen(engine)
    engine.step()
    page = engine.pages.table("r0")[1]
    flip(engine, page)
    engine.step()
    assert changed(heard) == {page}


def test_a_flip_between_the_records_and_the_read_is_found_in_its_step(way: str) -> None:
    """After the host-side checks, before attention: what it read is compared, token withheld."""
    if way == "torch":
        pytest.skip("torch alone reads the pages before the launch")
    engine = ReferenceEngine(tiny_model(), config=CONFIG)
    heard, _ = listen(engine)
    engine.submit(request("r0", 30, new=20))
    for _ in range(5):
        engine.step()
    page = engine.pages.table("r0")[0]

    def strike(call: VarlenAttentionCall) -> None:
        flip(engine, page)

    heard.clear()
    remove = engine.seams.add_fault(VarlenAttentionCall.operator, Phase.BEFORE, strike)
    engine.step()
    remove()
    assert changed(heard) == {page}
    assert changed(heard[:1]) == set()
    assert len(heard) == 2
