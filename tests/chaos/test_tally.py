"""What a run tells to whoever counts: each fault once for each thing that becomes of it."""

from collections import Counter
from pathlib import Path
from typing import Any

from tests.chaos.experiments import small
from tests.chaos.fake_system import FakeSystem, Misbehaviour
from tocsin.chaos.run import run
from tocsin.chaos.spec_file import parse_experiment

WEIGHT = {
    "id": "weights",
    "kind": "weight.bitflip",
    "when": {"clock": "decode_step", "at": [10, 20]},
    "expect": {"within": "500ms", "recover_within": "2s"},
}
BAD = {"id": "bad", "kind": "batch.malformed", "when": {"clock": "request", "at": [4]}}


class Meter:
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self.seconds: list[float] = []
        self.on: list[bool] = []
        self.in_place: list[int] = []
        self.false = -1

    def running(self, on: bool) -> None:
        self.on.append(on)

    def active(self, fault: str, count: int) -> None:
        self.in_place.append(count)

    def injected(self, fault: str) -> None:
        self.counts["injected", fault] += 1

    def detected(self, fault: str, seconds: float) -> None:
        self.counts["detected", fault] += 1
        self.seconds.append(seconds)

    def healed(self, fault: str) -> None:
        self.counts["healed", fault] += 1

    def false_alarms(self, count: int) -> None:
        self.false = count


def told(tmp_path: Path, wrong: Misbehaviour | None = None, **changes: Any) -> Meter:
    meter = Meter()
    system = FakeSystem(wrong=wrong or Misbehaviour())
    run(parse_experiment(small(**changes)), system, tmp_path, meter=meter)
    return meter


def test_every_fault_of_a_clean_run_is_counted_once_for_each_thing_that_becomes_of_it(
    tmp_path: Path,
) -> None:
    """Injected, seen and healed; what was in place is gone at the end; no alarm is false."""
    meter = told(tmp_path, faults=[WEIGHT, BAD])
    assert meter.counts == {
        (what, kind): count
        for what in ("injected", "detected", "healed")
        for kind, count in (("weight.bitflip", 2), ("batch.malformed", 1))
    }
    assert meter.on == [True, False]
    assert all(0 <= second < 0.5 for second in meter.seconds)
    assert meter.in_place[-1:] in ([], [0])
    assert meter.false == 0


def test_a_fault_that_nobody_sees_is_injected_and_not_detected(tmp_path: Path) -> None:
    """The difference of the two counters is what a blind checker would cost."""
    meter = told(tmp_path, Misbehaviour(undetected=frozenset({"weight.bitflip"})), faults=[WEIGHT])
    assert meter.counts["injected", "weight.bitflip"] == 2
    assert meter.counts["detected", "weight.bitflip"] == 0


def test_a_run_that_is_forbidden_is_not_a_running_one(tmp_path: Path, monkeypatch: Any) -> None:
    """Nothing was begun."""
    monkeypatch.setenv("CHAOS_DISABLE", "1")
    assert told(tmp_path).on == []


def test_a_malformed_request_that_is_served_was_not_seen(tmp_path: Path) -> None:
    """Only an explicit refusal counts."""
    meter = told(tmp_path, Misbehaviour(answers_malformed=True), faults=[BAD])
    assert meter.counts["detected", "batch.malformed"] == 0


def test_an_alarm_without_a_fault_is_a_false_one(tmp_path: Path) -> None:
    """Known at the end, when every alarm had its chance to belong to a fault."""
    assert told(tmp_path, Misbehaviour(false_alarm=True), faults=[WEIGHT]).false > 0
