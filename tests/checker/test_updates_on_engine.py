"""Updates of the cache below the first depth are put down, and found wrong all the same."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.checker.test_gate_on_engine import FULL_STEP, TOKENS, Build, Serving
from tocsin.checker import native
from tocsin.core.calls import KVUpdateCall
from tocsin.core.terms import Operator, Phase

LAYERS = 3
PAGE_SUM = "state.kv_page_sum"


@pytest.fixture(params=["guard", "full"])
def serving(
    request: pytest.FixtureRequest, sink: Any, family_model: Build
) -> Iterator[Callable[[], Serving]]:
    if not native.available():
        pytest.skip(native.reason())
    made: list[Serving] = []

    def make() -> Serving:
        model = family_model("llama", initializer_range=0.3)
        made.append(Serving(model, sink, profile=request.param))
        return made[-1]

    yield make
    for one in made:
        one.gate.close()
        one.guard.detach()


def records(desk: Serving, monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[int, int | None]]:
    """How often an update came as a record, by step and depth."""
    heard: Counter[tuple[int, int | None]] = Counter()
    emit = type(desk.engine.seams).emit

    def counting(seams: Any, call: Any, phase: Phase = Phase.AFTER) -> None:
        if isinstance(call, KVUpdateCall):
            heard[desk.engine.stats().step, call.depth] += 1
        emit(seams, call, phase)

    monkeypatch.setattr(type(desk.engine.seams), "emit", counting)
    return heard


def ran(desk: Serving) -> dict[tuple[str, str, str], int]:
    """Checks at the updates by layer and result."""
    counted = desk.guard.runtime.flush().checks
    return {key: runs for key, runs in counted.items() if key[0] == Operator.KV_UPDATE}


def test_only_the_first_depth_is_a_record(
    serving: Callable[[], Serving], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proves that a decode step builds one record of an update, whatever number of layers it has,
    and that as many checks run as where each is a record."""
    desk, told = serving(), serving()
    told.engine.seams.add_fault(Operator.KV_UPDATE, Phase.AFTER, lambda call: None)
    told.serve()
    heard = records(desk, monkeypatch)
    desk.serve()
    assert {depth for step, depth in heard if step >= FULL_STEP} == {0}
    assert ran(desk) == ran(told)
    assert sum(ran(desk).values()) > LAYERS * TOKENS
    assert not desk.gate.counters.skipped
    assert desk.failures == []


def test_a_key_that_is_lost_on_its_way_into_the_page_is_found(
    serving: Callable[[], Serving], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proves that an update that was put down is held to what the page has when the step ends."""
    desk = serving()
    heard, done = records(desk, monkeypatch), False

    def lose(call: Any) -> None:
        nonlocal done
        if done or call.depth != 1 or desk.engine.stats().step < FULL_STEP:
            return
        done = True
        sequence = desk.engine._ledger.sequences["r1"]
        size = desk.engine.pages.page_size
        page = desk.engine.pages.table("r1")[sequence.computed // size]
        desk.engine.pages.data[page, 1, 0, sequence.computed % size].zero_()

    desk.engine.seams.add_fault(Operator.ATTENTION, Phase.BEFORE, lose)
    desk.serve()
    assert done
    assert {depth for step, depth in heard if step == FULL_STEP} == {0}
    found = [one for one in desk.failures[0].findings if one.operator is Operator.KV_UPDATE]
    assert [(one.check, one.depth, one.rows) for one in found] == [(PAGE_SUM, 1, (1,))]
    assert desk.failures[0].request_ids == ("r1",)


def test_a_fault_that_is_armed_in_the_middle_of_a_step_hears_the_rest_of_it(
    serving: Callable[[], Serving],
) -> None:
    """Proves that whoever strikes at an update has its record at its time."""
    desk = serving()
    heard: list[tuple[int, int | None]] = []

    def arm(call: Any) -> bool:
        step = desk.engine.stats().step
        desk.engine.seams.add_fault(
            Operator.KV_UPDATE, Phase.AFTER, lambda update: heard.append((step, update.depth))
        )
        return True

    armed = False

    def at_first_attention(call: Any) -> None:
        nonlocal armed
        if not armed and call.depth == 0 and desk.engine.stats().step >= FULL_STEP:
            armed = arm(call)

    desk.engine.seams.add_fault(Operator.ATTENTION, Phase.BEFORE, at_first_attention)
    desk.serve()
    assert [depth for _, depth in heard[: LAYERS - 1]] == [1, 2]
    assert {depth for _, depth in heard} == set(range(LAYERS))
    assert desk.failures == []
