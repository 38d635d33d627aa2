"""Every rung of the recovery ladder, on a step whose behaviour is a function of run and backend."""

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tocsin.checker.breaker import Breaker
from tocsin.checker.contract import Check
from tocsin.checker.gate import GuardGate
from tocsin.checker.guard import attach
from tocsin.checker.journal import Journal
from tocsin.checker.settings import CheckerSettings
from tocsin.checker.weights import WeightStore
from tocsin.core.calls import AttentionCall, BatchCall, DeviceMemoryCall
from tocsin.core.clock import ManualClock
from tocsin.core.errors import BackendError
from tocsin.core.history import EventKind
from tocsin.core.terms import Action, BreakerState, Cause, Phase

GIB = 1 << 30
Body = Callable[[Any, str], None]


class Bench:
    """A gate over a small model, and steps made to measure."""

    def __init__(
        self, sink: Any, attempt: type[Any], pages: Any, journal: Path, **settings: Any
    ) -> None:
        self.clock = ManualClock()
        self.sink = sink
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 256)).eval()
        self.guard = attach(self.model, clock=self.clock, sink=sink)
        self.breaker = Breaker(clock=self.clock, sink=sink, cooldown_s=10)
        self.weights = WeightStore(self.model, tile_bytes=1024)
        self.pages = pages
        self.gate = GuardGate(
            self.guard,
            self.breaker,
            self.weights,
            pages=pages,
            sink=sink,
            journal=Journal(journal, counters=self.guard.runtime.counters),
            clock=self.clock,
            settings=CheckerSettings(scrub_bytes=settings.pop("scrub_bytes", 0), **settings),
            replica="r1",
            model_name="tiny",
        )
        self._attempt = attempt
        self._step = 0

    def settle(self, body: Body, **fields: Any) -> tuple[Any, Any]:
        """Run one step as an engine does; returns (attempt, settlement)."""
        self._step += 1
        fields = {"backend": self.breaker.choose(), "pages": self.pages, **fields}
        attempt = self._attempt(body, self.gate, step=self._step, **fields)
        self.gate.open(attempt)
        error = None
        try:
            attempt.run()
        except (BackendError, RuntimeError) as raised:
            error = raised
        return attempt, self.gate.settle(attempt, error)

    def attend(self, bad: dict[int, float] | None = None) -> None:
        """One attention of three rows; `bad` maps a row to the value in its output."""
        output = torch.ones(3, 2, 1, 4)
        for row, value in (bad or {}).items():
            output[row, 0, 0, 0] = value
        kv = torch.ones(3, 1, 5, 4)
        call = AttentionCall(
            module="layers.0.attn", depth=0, rows=3, q=output, k=kv, v=kv, output=output
        )
        self.guard.seams.emit(call)

    def linear(self) -> torch.Tensor:
        """The model's own linear, three rows of one token."""
        output: torch.Tensor = self.model(torch.ones(3, 1, 8))
        return output

    def batch(self, ids: list[int]) -> bool:
        """Announce the batch; returns whether it may be launched."""
        tensor = torch.tensor(ids)
        self.guard.seams.emit(
            BatchCall(
                rows=3,
                input_ids=tensor,
                input_ids_expected=tensor,
                position_ids=tensor,
                position_ids_expected=tensor,
                vocab_size=100,
            ),
            Phase.BEFORE,
        )
        return self.gate.may_launch()

    def memory(self, free_bytes: int) -> bool:
        """Announce a reading of free memory."""
        call = DeviceMemoryCall(free_bytes=free_bytes, total_bytes=8 * GIB)
        self.guard.seams.emit(call, Phase.BEFORE)
        return self.gate.may_launch()


@pytest.fixture
def bench(
    sink: Any,
    fake_attempt: type[Any],
    fake_pages: type[Any],
    fake_checks: dict[str, Check],
    tmp_path: Path,
) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(**settings: Any) -> Bench:
        pages = fake_pages({"a": (1, 2), "b": (3,)})
        made.append(Bench(sink, fake_attempt, pages, tmp_path / "failures.jsonl", **settings))
        return made[-1]

    yield make
    for one in made:
        one.gate.close()
        one.guard.detach()


RELEASED = (Action.RELEASE,) * 3


def test_a_clean_step_is_released_verified_and_run_once(bench: Callable[..., Bench]) -> None:
    """Proves the way that nearly every step goes."""
    desk = bench()
    attempt, settlement = desk.settle(lambda step, backend: desk.attend())
    assert settlement.actions == RELEASED
    assert (settlement.verified, settlement.degraded, settlement.failures) == (True, (), ())
    assert attempt.runs == 1
    assert desk.gate.counters.verified_tokens == 2
    assert desk.sink.events == []


def test_an_alarm_that_does_not_repeat_is_transient(bench: Callable[..., Bench]) -> None:
    """Proves rung 1: same kernel again, clean, released without a label."""
    desk = bench()
    attempt, settlement = desk.settle(
        lambda step, backend: desk.attend({1: math.nan} if step.runs == 1 else None)
    )
    assert settlement.actions == RELEASED
    assert settlement.degraded == ()
    failure = settlement.failures[0]
    assert (failure.cause, failure.action, failure.runs) == (Cause.TRANSIENT, Action.RELEASE, 2)
    assert failure.request_ids == ("b",)
    assert attempt.backends == ["flash", "flash"]
    assert desk.breaker.state() is BreakerState.CLOSED


def test_an_alarm_on_one_backend_only_is_persistent_and_labelled(
    bench: Callable[..., Bench],
) -> None:
    """Proves rung 2: the fallback's answer leaves with its label; three times open the breaker."""
    desk = bench()

    def body(step: Any, backend: str) -> None:
        desk.attend({0: math.nan} if backend == "flash" else None)

    for number in range(3):
        attempt, settlement = desk.settle(body)
        assert attempt.backends == ["flash", "flash", "sdpa"], number
        assert settlement.degraded == ("attention:sdpa",)
        assert settlement.failures[0].cause is Cause.PERSISTENT
    assert desk.breaker.state() is BreakerState.OPEN
    attempt, settlement = desk.settle(body)
    assert attempt.backends == ["sdpa"]
    assert settlement.degraded == ("attention:sdpa",)
    desk.clock.sleep(11)
    attempt, settlement = desk.settle(lambda step, backend: desk.attend())
    assert attempt.backends == ["flash"]
    assert settlement.degraded == ()
    assert desk.breaker.state() is BreakerState.CLOSED
    told = [(e.data["reason"], e.data["on"]) for e in desk.sink.of(EventKind.DEGRADED)]
    assert told == [("attention:sdpa", True), ("attention:sdpa", False)]


def test_a_backend_that_raises_is_left_at_once(bench: Callable[..., Bench]) -> None:
    """Proves that an exception is no alarm: one run on the fallback, a backend error is told."""
    desk = bench()

    def body(step: Any, backend: str) -> None:
        if backend == "flash":
            raise BackendError("flash: no kernel for this shape")
        desk.attend()

    attempt, settlement = desk.settle(body)
    assert attempt.backends == ["flash", "sdpa"]
    assert settlement.actions == RELEASED
    assert settlement.degraded == ("attention:sdpa",)
    assert settlement.failures[0].findings == ()
    assert [e.data["backend"] for e in desk.sink.of(EventKind.BACKEND_ERROR)] == ["flash"]
    assert desk.sink.of(EventKind.CHECK_FAILED) == []


def test_a_chain_of_raising_backends_ends_in_a_refusal(bench: Callable[..., Bench]) -> None:
    """Proves that nothing is released when no backend answers."""
    desk = bench()

    def body(step: Any, backend: str) -> None:
        raise BackendError(f"{backend}: gone")

    attempt, settlement = desk.settle(body)
    assert attempt.backends == ["flash", "sdpa", "math"]
    assert settlement.actions == (Action.REFUSE, Action.REFUSE, Action.RELEASE)
    assert settlement.failures[0].cause is Cause.UNRESOLVED
    told = [event.data["backend"] for event in desk.sink.of(EventKind.BACKEND_ERROR)]
    assert told == ["flash", "sdpa", "math"]


def test_another_exception_is_run_again_once_more_and_refused(bench: Callable[..., Bench]) -> None:
    """Proves that an unknown error is neither lost nor served."""
    desk = bench()

    def once(step: Any, backend: str) -> None:
        if step.runs == 1:
            raise RuntimeError("index out of range")
        desk.attend()

    _, settlement = desk.settle(once)
    assert settlement.failures[0].cause is Cause.TRANSIENT
    assert "index out of range" in desk.gate.journal.recent()[-1]["error"]

    def always(step: Any, backend: str) -> None:
        raise RuntimeError("index out of range")

    attempt, settlement = desk.settle(always)
    assert settlement.actions[:2] == (Action.REFUSE, Action.REFUSE)
    assert attempt.runs <= 5


def test_a_page_that_changed_is_quarantined_and_its_holder_recomputed(
    bench: Callable[..., Bench],
) -> None:
    """Proves rung 3 for pages: the others are finished and released."""
    desk = bench()
    desk.pages.data[2, 0, 1, 3] = math.nan

    def body(step: Any, backend: str) -> None:
        poisoned = not torch.isfinite(desk.pages.data[2]).all()
        desk.attend({0: math.nan} if poisoned else None)

    attempt, settlement = desk.settle(body)
    assert settlement.actions == (Action.RECOMPUTE, Action.RELEASE, Action.RELEASE)
    failure = settlement.failures[0]
    assert (failure.cause, failure.pages) == (Cause.STATE, (2,))
    assert failure.request_ids == ("a",)
    assert attempt.quarantined == [2]
    assert torch.isfinite(desk.pages.data).all()
    assert {f.check for f in failure.findings} == {"numerical.attention", "state.kv_page_sum"}
    assert [e.request_id for e in desk.sink.of(EventKind.REQUEST_RECOMPUTED)] == ["a"]
    assert desk.sink.of(EventKind.PAGES_QUARANTINED)[0].data["pages"] == [2]


def test_a_request_whose_pages_keep_going_bad_is_refused(bench: Callable[..., Bench]) -> None:
    """Proves that recomputing ends."""
    desk = bench(recomputes_max=2)
    actions = []
    for _ in range(3):
        desk.pages.tables = {"a": (1, 2), "b": (3,)}
        desk.pages.data[2] = math.nan
        _, settlement = desk.settle(
            lambda step, backend: desk.attend(
                None if torch.isfinite(desk.pages.data[2]).all() else {0: math.nan}
            )
        )
        actions.append(settlement.actions[0])
    assert actions == [Action.RECOMPUTE, Action.RECOMPUTE, Action.REFUSE]


def test_a_weight_that_changed_is_copied_back_and_the_step_is_exact(
    bench: Callable[..., Bench],
) -> None:
    """Proves rung 3 for weights: repaired from the cold copy, same bits, no label."""
    desk = bench()
    weight = desk.model[0].weight
    clean = desk.linear().clone()
    true = weight.detach().clone()
    with torch.no_grad():
        weight[130, 3] *= 2.0**40
    outputs = []

    def body(step: Any, backend: str) -> None:
        desk.attend()
        outputs.append(desk.linear())

    _, settlement = desk.settle(body)
    assert settlement.actions == RELEASED
    assert settlement.degraded == ()
    failure = settlement.failures[0]
    assert failure.cause is Cause.STATE
    assert {f.check for f in failure.findings} == {"numerical.linear", "state.weight_sum"}
    assert torch.equal(weight, true)
    assert torch.equal(outputs[-1], clean)
    assert not torch.equal(outputs[0], clean)
    repaired = desk.sink.of(EventKind.WEIGHT_REPAIRED)[0].data
    assert (repaired["tensor"], repaired["tile"]) == ("0.weight", 4)


def test_small_alarms_on_which_two_backends_agree_are_refuted(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proves rung 4: rounding is released on the primary, unlabelled, and counted as refuted."""
    desk = bench()
    monkeypatch.setattr(desk, "attend", lambda ratio: _emit_ratio(desk, ratio))
    attempt, settlement = desk.settle(lambda step, backend: desk.attend(3.0))
    assert attempt.backends == ["flash", "flash", "sdpa", "flash"]
    assert settlement.actions == RELEASED
    assert settlement.degraded == ()
    assert settlement.failures[0].cause is Cause.LEGITIMATE
    assert desk.gate.counters.causes["legitimate"] == 1
    assert desk.breaker.state() is BreakerState.CLOSED


@pytest.mark.parametrize("ratio", [9.0, math.inf, math.nan])
def test_large_alarms_are_refused_whatever_two_backends_agree_on(
    bench: Callable[..., Bench], ratio: float
) -> None:
    """Proves the nearest miss of rung 4: a fault below both backends is not rounding."""
    desk = bench()
    attempt, settlement = desk.settle(lambda step, backend: _emit_ratio(desk, ratio))
    assert settlement.actions == (Action.REFUSE, Action.RELEASE, Action.RELEASE)
    assert settlement.failures[0].cause is Cause.UNRESOLVED
    assert attempt.runs <= 5
    assert [e.request_id for e in desk.sink.of(EventKind.REQUEST_REFUSED)] == ["a"]


def test_backends_that_disagree_on_a_token_refute_nothing(bench: Callable[..., Bench]) -> None:
    """Proves that a different token is never called rounding."""
    desk = bench()

    def body(step: Any, backend: str) -> None:
        step.outputs = (5 if backend == "flash" else 7, 6, -1)
        _emit_ratio(desk, 3.0)

    _, settlement = desk.settle(body)
    assert settlement.actions[0] is Action.REFUSE


def test_only_the_rows_of_an_alarm_are_refused(bench: Callable[..., Bench]) -> None:
    """Proves isolation: a neighbour that is clean in the last run is released."""
    desk = bench()
    _, settlement = desk.settle(lambda step, backend: desk.attend({1: math.inf}))
    assert settlement.actions == (Action.RELEASE, Action.REFUSE, Action.RELEASE)


def test_a_host_side_alarm_vetoes_the_launch_and_a_rebuilt_batch_is_transient(
    bench: Callable[..., Bench],
) -> None:
    """Proves that a wrong token id is never launched."""
    desk = bench()
    launched = []

    def body(step: Any, backend: str) -> None:
        if desk.batch([1, 100_000 if step.runs == 1 else 2, 3]):
            launched.append(step.runs)
            desk.attend()

    _, settlement = desk.settle(body)
    assert launched == [2]
    assert settlement.actions == RELEASED
    assert settlement.failures[0].findings[0].check == "semantic.token_range"
    assert settlement.failures[0].findings[0].rows == (1,)


def test_a_batch_that_stays_wrong_is_never_launched(bench: Callable[..., Bench]) -> None:
    """Proves that a veto that repeats ends in a refusal of every row: none of them ran."""
    desk = bench()
    launched = []

    def body(step: Any, backend: str) -> None:
        if desk.batch([1, -1, 3]):
            launched.append(step.runs)

    _, settlement = desk.settle(body)
    assert launched == []
    assert settlement.actions[:2] == (Action.REFUSE, Action.REFUSE)


def test_the_number_of_runs_is_bounded(bench: Callable[..., Bench]) -> None:
    """Proves that a step which alarms for ever ends."""
    desk = bench(runs_max=2)
    attempt, settlement = desk.settle(lambda step, backend: desk.attend({0: math.nan}))
    assert attempt.runs == 2
    assert settlement.actions[0] is Action.REFUSE
    assert settlement.failures[0].runs == 2


def test_low_memory_moves_the_step_to_the_lighter_backend_and_back(
    bench: Callable[..., Bench],
) -> None:
    """Proves the watermark: the step is not recomputed, it is moved; hysteresis on the way back."""
    desk = bench()
    readings = iter([8, 1.5, 1.5, 2.2, 2.6])
    free = {"gib": 8.0}

    def body(step: Any, backend: str) -> None:
        if desk.memory(int(free["gib"] * GIB)):
            desk.attend()

    labels = []
    runs = []
    for reading in readings:
        free["gib"] = reading
        attempt, settlement = desk.settle(body)
        assert settlement.actions == RELEASED
        labels.append(settlement.degraded)
        runs.append(tuple(attempt.backends))
    degraded = ("attention:sdpa",)
    # The last reading comes after the backend was chosen: the primary serves one step later.
    assert labels == [(), degraded, degraded, degraded, degraded]
    assert runs == [("flash",), ("flash", "sdpa"), ("sdpa",), ("sdpa",), ("sdpa",)]
    assert desk.breaker.choose() == "flash"


def test_very_low_memory_keeps_only_the_essential_checks(bench: Callable[..., Bench]) -> None:
    """Proves that below the second mark the numerical checks stop, and come back."""
    desk = bench()
    desk.gate.watermark.observe(GIB // 2)
    assert desk.guard.runtime.running() == ()
    desk.gate.watermark.observe(3 * GIB)
    assert len(desk.guard.runtime.running()) == 4


def test_with_checks_off_a_step_is_released_unverified(bench: Callable[..., Bench]) -> None:
    """Proves that `off` is counted and never called verified."""
    desk = bench()
    desk.guard.switchboard.set_profile("off", "a test")
    _, settlement = desk.settle(lambda step, backend: desk.attend({0: math.nan}))
    assert settlement.actions == RELEASED
    assert not settlement.verified
    assert desk.gate.counters.unverified_tokens == 2
    assert desk.gate.counters.verified_tokens == 0


def test_a_failure_is_journalled_counted_and_told_alike(
    bench: Callable[..., Bench], tmp_path: Path
) -> None:
    """Proves that journal, event, settlement and counters speak of one failure."""
    desk = bench()
    _, settlement = desk.settle(
        lambda step, backend: desk.attend({1: math.nan} if step.runs == 1 else None)
    )
    failure = settlement.failures[0]
    line = json.loads((tmp_path / "failures.jsonl").read_text())
    assert line["failure_id"] == failure.failure_id
    assert len(line["failure_id"]) == 26
    assert line["findings"][0]["ratio"] == "NaN"
    assert line["request_ids"] == ["b"]
    assert (line["cause"], line["action"], line["runs"]) == ("transient", "release", 2)
    assert (line["replica"], line["model"], line["mark"]) == ("r1", "tiny", "[CHECK]")
    event = desk.sink.of(EventKind.CHECK_FAILED)[0]
    assert event.data == line
    key = ("attention", "numerical", "numerical.attention", "P0")
    assert desk.gate.counters.failures[key] == 1
    assert desk.gate.journal.find(failure.failure_id) == line
    json.dumps(desk.gate.status())


def _emit_ratio(desk: Bench, ratio: float) -> None:
    """A check that reports exactly this ratio for row 0 (through the fake attention check)."""
    unit = next(
        site for site in (*desk.guard.runtime._units.values(),) if site.id == "numerical.attention"
    )
    fixed = SimpleNamespace(
        value=torch.tensor([ratio, 0.0, 0.0]), call=lambda call, **limits: fixed.value
    )
    object.__setattr__(unit, "ratio", fixed.call)
    Bench.attend(desk)
