"""The rule for worse, each clause with the nearest case that it must let pass."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.chaos.compare.model import Change, FaultReading, PairedRatio, Side
from tocsin.chaos.compare.worse import fault_change, property_change, worsenings

SIDE = Side(
    run="small/1",
    run_dir="store/small/1",
    experiment="small",
    verdict="pass",
    exit_code=0,
    sentence="",
    seed=1,
    plan_digest="0",
    engine="fake",
    model="echo",
    profile="full",
    length_s=1.0,
    requests=100,
    tokens=800,
    silent_corruptions=0,
    lost=0,
    duplicated=0,
    false_alarms=0,
    availability=0.99,
)
READING = FaultReading(2, 2, 2, 2, 80.0, 100.0, 1000.0)
VERDICTS = ("pass", "vacuous", "unknown", "fail")


def _worse(b: Side, **more: object) -> tuple[str, ...]:
    nothing = {"properties": (), "faults": (), "paired": ()}
    return worsenings(SIDE, b, **{**nothing, **more}, tolerance=0.25)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["silent_corruptions", "lost", "duplicated", "false_alarms"])
def test_more_harm_is_worse_and_as_much_is_not(name: str) -> None:
    """One more is enough."""
    assert len(_worse(replace(SIDE, **{name: 1}))) == 1
    assert _worse(replace(SIDE, **{name: 0})) == ()


@pytest.mark.parametrize(("availability", "count"), [(0.981, 0), (0.979, 1), (None, 1), (1.0, 0)])
def test_availability_may_fall_by_one_point(availability: float | None, count: int) -> None:
    """No data where there was some is worse."""
    assert len(_worse(replace(SIDE, availability=availability))) == count


@pytest.mark.parametrize("code", [1, 2, 3, 4, 5, 99])
def test_a_worse_end_is_worse(code: int) -> None:
    """Whatever follows a pass; a code that nobody knows is the worst of all."""
    assert len(_worse(replace(SIDE, exit_code=code, verdict="fail"))) == 1


@given(st.sampled_from(VERDICTS), st.sampled_from(VERDICTS))
def test_a_property_is_worse_one_way_and_better_the_other(a: str, b: str) -> None:
    """The order of verdicts is total, and nothing is both."""
    there, back = property_change(a, b), property_change(b, a)
    pairs = {
        Change.SAME: Change.SAME,
        Change.WORSE: Change.BETTER,
        Change.BETTER: Change.WORSE,
    }
    assert back is pairs[there]
    assert (there is Change.SAME) is (a == b)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"mttd_ms_p99": 124.0}, Change.SAME),  # within the tolerance
        ({"mttd_ms_p99": 149.0}, Change.SAME),  # half as long again, but under 50 ms
        ({"mttd_ms_p99": 151.0}, Change.WORSE),
        ({"mttd_ms_p99": None}, Change.SAME),  # that nobody saw it is told by the counts
        ({"recover_ms_max": 1260.0}, Change.WORSE),
        ({"recover_ms_max": 700.0}, Change.BETTER),
        ({"detected": 1}, Change.WORSE),
        ({"healed": 1}, Change.WORSE),
        ({"fired": 1, "detected": 1, "healed": 1}, Change.WORSE),
        ({"planned": 4, "fired": 4, "detected": 4, "healed": 4}, Change.SAME),
    ],
)
def test_a_fault_is_judged_by_shares_and_times(change: dict[str, object], expected: Change) -> None:
    """The nearest miss of every limit is let pass."""
    found, reasons = fault_change(READING, replace(READING, **change), 0.25)  # type: ignore[arg-type]
    assert found is expected
    assert bool(reasons) is (expected is not Change.SAME)


def test_a_fault_that_did_not_fire_is_told_once() -> None:
    """Of nothing there is no share that was detected or healed."""
    silent = replace(READING, fired=0, detected=0, healed=0, mttd_ms_p99=None)
    assert fault_change(READING, silent, 0.25)[1] == ("fired 2 of 2, then 0 of 2",)


@pytest.mark.parametrize(
    ("measure", "phase", "low", "count"),
    [
        ("first token", "whole run", 1.26, 1),
        ("first token", "whole run", 1.24, 0),
        ("whole answer", "whole run", 1.26, 1),
        ("between tokens", "whole run", 1.26, 0),
        ("first token", "during", 1.26, 0),
    ],
)
def test_only_a_time_that_surely_grew_is_worse(
    measure: str, phase: str, low: float, count: int
) -> None:
    """The lower end of the interval decides, over the whole run."""
    one = PairedRatio(measure, phase, 100, 1.4, low, 1.6)
    assert len(_worse(SIDE, paired=(one,))) == count
