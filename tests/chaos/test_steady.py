"""Steady state, abort conditions and the places that replicas fill."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.histories import MS, clean_case, clean_record
from tocsin.chaos.attribution import attribute, check_ids, subject
from tocsin.chaos.fleet import Fleet
from tocsin.chaos.safety import Safety
from tocsin.chaos.spec import AbortSpec, ProbeSpec, SafetySpec
from tocsin.chaos.steady import Timeline, percentile, probe_readings, reading, recovered_after_s
from tocsin.core.history import Event, EventKind, Outcome, RequestRecord
from tocsin.core.system import ReplicaInfo

S = 1000 * MS


def _windows(*kinds: str) -> Timeline:
    """Windows of one second: g good, b bad, . idle, w waited for in vain."""
    records = []
    for i, kind in enumerate(kinds):
        record = clean_record(i, i * S + 100 * MS)
        if kind == "b":
            record = replace(record, outcome=Outcome.FAIL)
        if kind == "w":
            record = replace(record, chunks=[], t_end_ns=(i + 1) * S + 1)
        if kind != ".":
            records.append(record)
    return Timeline.of(records)


@pytest.mark.parametrize(
    ("kinds", "seconds"),
    [
        ("gg", 0.0),
        ("bgg", 1.0),
        ("gbgg", 2.0),
        ("gb", None),
        ("g.g", 0.0),
        (".gg", 1.0),
        ("..", None),
        ("wggg", 1.0),
        ("", None),
    ],
)
def test_recovery_is_the_first_of_two_good_windows_in_a_row(
    kinds: str, seconds: float | None
) -> None:
    """One good window is none; idle ones neither count nor break the row."""
    assert recovered_after_s(_windows(*kinds), 0, len(kinds) * S, 1.0, 2) == seconds


def test_readings_of_the_probes() -> None:
    """Shares and nearest-rank percentiles of what clients saw."""
    records = [clean_record(i, i * S) for i in range(3)]
    assert reading(records, "ok_ratio") == 1.0
    assert reading(records, "ttft_ms_p99") == 10.0
    assert reading(records, "itl_ms_p99") == 10.0
    assert reading([], "ok_ratio") is None
    assert reading([], "itl_ms_p99") is None
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0


def test_probes_read_the_phase_they_are_asked_for() -> None:
    """Before the first fault with the warm-up; after the last heal without."""
    case = clean_case()
    probe = ProbeSpec(name="p", metric="ok_ratio", op=">=", value=0.9)
    steady = case.spec.steady_state.model_copy(update={"probes": (probe,)})
    case = replace(case, spec=case.spec.model_copy(update={"steady_state": steady}))
    late = replace(case.records[-1], outcome=Outcome.FAIL)
    case = replace(case, records=(*case.records[:-1], late))
    assert probe_readings(case, "before")[0][1] == 1.0
    after = probe_readings(case, "after")[0][1]
    assert after is not None
    assert after < 1.0
    assert probe_readings(replace(case, records=()), "after")[0][1] is None


@pytest.mark.parametrize(
    ("op", "value", "number", "holds"),
    [
        (">=", 1.0, 1.0, True),
        (">", 1.0, 1.0, False),
        ("<", 1.0, 0.9, True),
        ("<=", 1.0, 1.1, False),
        (">=", 1.0, float("nan"), False),
        ("<", 1.0, float("nan"), False),
    ],
)
def test_probes_compare_and_nan_never_holds(
    op: Any, value: float, number: float, holds: bool
) -> None:
    """A broken reading is not within any limit."""
    assert ProbeSpec(name="p", metric="ok_ratio", op=op, value=value).holds(number) is holds


def _safety(when: str, meminfo: Path, **fields: Any) -> Safety:
    spec = SafetySpec.model_validate({"abort": [{"when": when}] if when else [], **fields})
    return Safety(spec, 0, meminfo)


@pytest.fixture
def meminfo(tmp_path: Path) -> Path:
    path = tmp_path / "meminfo"
    path.write_text("MemTotal: 9 kB\nMemAvailable:    2048 kB\n")
    return path


def _ended(t_ns: int, outcome: Outcome) -> RequestRecord:
    return replace(clean_record(0, t_ns - 80 * MS), outcome=outcome)


def test_too_few_answers_in_the_window_stop_the_run(meminfo: Path) -> None:
    """Three of four in the last second failed; older ones do not count."""
    safety = _safety("ok_ratio < 0.5 for 1s", meminfo)
    old = [_ended(1 * S, Outcome.OK) for _ in range(20)]
    bad = [_ended(5 * S, Outcome.FAIL)] * 3
    assert "ok_ratio is 0.25" in safety.why_stop([*old, *bad, _ended(5 * S, Outcome.OK)], 5 * S)
    even = [*bad, *[_ended(5 * S, Outcome.OK)] * 3]
    assert safety.why_stop(even, 5 * S) == ""


def test_no_data_for_two_windows_stops_the_run_and_for_one_does_not(meminfo: Path) -> None:
    """The last answer came at 3 s, windows are of one second."""
    safety = _safety("ok_ratio < 0.5 for 1s", meminfo)
    records = [_ended(3 * S, Outcome.OK)]
    assert safety.why_stop(records, 4 * S + 900 * MS) == ""
    assert "no data for two windows" in safety.why_stop(records, 5 * S + 100 * MS)


def test_without_any_condition_silence_stops_the_run_all_the_same(meminfo: Path) -> None:
    """Twenty seconds."""
    safety = _safety("", meminfo, max_duration="1h")
    assert safety.why_stop([], 19 * S) == ""
    assert "no data" in safety.why_stop([], 21 * S)


def test_little_host_memory_stops_the_run(meminfo: Path) -> None:
    """2 MiB are available."""
    assert "GiB of host memory" in _safety("host_mem_free < 3MiB", meminfo).why_stop([], S)
    assert _safety("host_mem_free < 1MiB", meminfo).why_stop([], S) == ""


def test_the_longest_duration_stops_the_run(meminfo: Path) -> None:
    """Not a moment before."""
    safety = _safety("", meminfo, max_duration="5s")
    assert safety.why_stop([], 5 * S) == ""
    assert "max_duration" in safety.why_stop([], 5 * S + 1)


def test_abort_conditions_know_their_metric() -> None:
    """A metric that nobody reads is refused when the file is read."""
    with pytest.raises(ValueError, match="ok_ratio"):
        AbortSpec(when="gpu_temperature < 3")


def _replica(name: str, step: int, alive: bool = True) -> ReplicaInfo:
    return ReplicaInfo(name, 1, "node", alive, step, 0)


def test_a_replacement_takes_the_place_of_the_dead_and_the_clock_goes_on() -> None:
    """Steps of the place: 30 by the first replica, 5 by the second."""
    fleet = Fleet([_replica("a", 100), _replica("b", 7)])
    fleet.update([_replica("a", 130), _replica("b", 9)])
    assert [place.progress for place in fleet.places] == [30, 2]
    fleet.update([_replica("a", 130, alive=False), _replica("b", 9)])
    assert not fleet.is_alive("a")
    fleet.update([_replica("b", 9), _replica("c", 5)])
    assert fleet.places[0].replica == "c"
    assert [place.progress for place in fleet.places] == [35, 2]
    assert fleet.is_alive("c")


def test_a_replica_that_is_no_longer_told_of_is_dead() -> None:
    """Absence is no life."""
    fleet = Fleet([_replica("a", 1), _replica("b", 1)])
    fleet.update([_replica("b", 1)])
    assert [place.alive for place in fleet.places] == [False, True]


def test_service_events_are_about_the_replica_that_they_name() -> None:
    """The board tells; the replica is meant."""
    down = Event(EventKind.REPLICA_DOWN, 1, "board", data={"replica": "replica-0"})
    assert subject(down) == "replica-0"
    assert subject(replace(down, data={})) == "board"


def test_checks_of_a_failure_are_named_once_each() -> None:
    """From its findings, its list, or its own name."""
    data = {"findings": [{"check": "a.b"}, {"check": "c.d"}, {"check": "a.b"}], "check": "a.b"}
    assert check_ids(data) == ("a.b", "c.d")
    assert check_ids({}) == ()


def test_an_alarm_goes_to_the_fault_that_means_it() -> None:
    """Two faults are active on one replica: the detector decides, not the order."""
    case = clean_case()
    first = case.occurrences[0]
    planned = replace(
        first.planned,
        id="other@0",
        expect=replace(first.planned.expect, detectors=("numerical.finite",)),
    )
    second = replace(first, planned=planned, fired_ns=first.fired_ns + MS)
    found = attribute(replace(case, occurrences=(first, second)))
    one = found.first_expected("weights@0")
    assert one is not None
    assert one.detector == "state.weight_sum"
    assert found.first_expected("other@0") is None
    assert not found.false_alarms
