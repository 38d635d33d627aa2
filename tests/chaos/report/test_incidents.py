"""Faults, replicas and reactions: what the lanes, the table and the answers say of a run."""

from dataclasses import replace

import pytest

from tests.chaos.report.recorded import START_NS, Story
from tests.chaos.report.verdicts import passing, verdict_of, violated
from tocsin.chaos.attribution import Detection
from tocsin.chaos.case import Case, OccurrenceRecord
from tocsin.chaos.contract import faults
from tocsin.chaos.report.answers import DIFFS_MOST, differing, triages_of
from tocsin.chaos.report.incidents import fault_rows
from tocsin.chaos.report.lifecycle import fault_lanes, merged
from tocsin.chaos.report.model import Mark, MarkKind, Span
from tocsin.chaos.report.reactions import reactions_by_fault
from tocsin.chaos.report.replicas import replica_lanes
from tocsin.chaos.report.view import phase_spans, with_bounds
from tocsin.core.history import Event, EventKind, Outcome

SECOND = 1_000_000_000


def one_occurrence(**changes: object) -> tuple[Case, OccurrenceRecord]:
    """A run with a single occurrence, changed as wanted."""
    case, _ = passing(Story(requests=4, per_fault=1))
    chosen = next(one for one in case.occurrences if one.planned.kind == "kv.bitflip")
    for name, value in changes.items():
        setattr(chosen, name, value)
    return replace(case, occurrences=(chosen,), events=()), chosen


def marks_of(case: Case, *detections: Detection) -> list[Mark]:
    """Marks of the only lane."""
    verdict = verdict_of(case, detections=detections)
    return list(fault_lanes(case, verdict, 62.0, 2400)[0].marks)


def detection(record: OccurrenceRecord, *, expected: bool) -> Detection:
    """A detector's alarm 30 ms after the fault fired."""
    return Detection(
        "state.kv_page_sum",
        record.fired_ns + 30_000_000,
        record.replica,
        record.planned.id,
        expected=expected,
        latency_ms=30.0,
    )


def test_a_life_without_a_gap_has_four_marks() -> None:
    """Ordered, fired, detected and healed, each at its time."""
    case, record = one_occurrence()
    marks = {mark.kind: mark for mark in marks_of(case, detection(record, expected=True))}
    assert set(marks) == {
        MarkKind.PLANNED,
        MarkKind.FIRED,
        MarkKind.DETECTED,
        MarkKind.HEALED,
    }
    assert marks[MarkKind.FIRED].t_s == pytest.approx((record.fired_ns - START_NS) / 1e9)
    assert "detected after 30 ms by state.kv_page_sum" in marks[MarkKind.DETECTED].label


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"fired_ns": 0, "error": "no such page"}, "never fired: no such page"),
        ({"state": "unhealed", "error": "still NaN"}, "not healed: still NaN"),
        ({}, "was not detected"),
    ],
)
def test_whatever_is_missing_is_a_mark_of_its_own(changes: dict[str, object], words: str) -> None:
    """Not fired, not healed, not detected: each a cross with its reason."""
    case, _ = one_occurrence(**changes)
    missed = [mark.label for mark in marks_of(case) if mark.kind is MarkKind.MISSED]
    assert any(words in label for label in missed)


def test_an_unexpected_detector_does_not_count_as_detection() -> None:
    """It is named, and the mark is a cross all the same."""
    case, record = one_occurrence()
    marks = marks_of(case, detection(record, expected=False))
    assert MarkKind.DETECTED not in {mark.kind for mark in marks}
    assert any("seen only by state.kv_page_sum" in mark.label for mark in marks)


def test_thousands_of_marks_become_few_with_counts() -> None:
    """None is lost: the counts add up to all of them."""
    case, verdict = passing(Story(requests=4, per_fault=400))
    lane = fault_lanes(case, verdict, 62.0, 2400)[0]
    assert len(lane.marks) < 300
    assert sum(mark.count for mark in lane.marks) == 4 * 400


def test_false_alarms_have_a_lane_of_their_own() -> None:
    """Only when there are any."""
    case, verdict = passing(Story(requests=4, per_fault=1))
    assert "false alarms" not in [lane.name for lane in fault_lanes(case, verdict, 62.0, 2400)]
    stray = Detection("numerical.finite", START_NS + SECOND, "w")
    lanes = fault_lanes(case, replace(verdict, detections=(stray,)), 62.0, 2400)
    assert [mark.t_s for mark in lanes[-1].marks] == [1.0]


def test_overlapping_windows_are_joined() -> None:
    """Shading is not laid on twice, and the label names both."""
    spans = [Span(3, 4, "", "c"), Span(0, 2, "", "a"), Span(1, 2.5, "", "b")]
    assert merged(spans) == (Span(0, 2.5, "", "a, b"), Span(3, 4, "", "c"))


def test_the_table_tells_what_the_detectors_owe() -> None:
    """All seen, none seen, some seen, seen by the wrong one, and never fired."""
    case, verdict = passing()
    kinds = {row.kind: row for row in fault_rows(case, verdict, faults())}
    row = kinds["kv.bitflip"]
    assert row.missing == ""
    assert {one.detector: one.expected for one in row.detectors} == {
        "state.kv_page_sum": True,
        "numerical.attention_hull": False,
    }
    assert replace(row, detected=1).missing == "1 not seen in time by an expected one"
    assert replace(row, detected=0, detectors=()).missing == "not detected"
    assert replace(row, detected=0, required=False).missing == ""
    assert replace(row, fired=0).missing == "never fired"


def test_a_replica_is_drawn_as_its_events_tell() -> None:
    """Up until it stalls, up again, then down to the end; the gateway is no replica."""
    events = [
        Event(EventKind.REPLICA_STALLED, START_NS + 2 * SECOND, "a"),
        Event(EventKind.REPLICA_RESUMED, START_NS + 3 * SECOND, "a"),
        Event(EventKind.REPLICA_DOWN, START_NS + 8 * SECOND, "a"),
        Event(EventKind.REPLICA_UP, START_NS + 9 * SECOND, "b"),
        Event(EventKind.REQUEST_RESUMED, START_NS + 9 * SECOND, "gateway"),
    ]
    a, b = replica_lanes(events, START_NS, 10.0)
    assert [(span.state, span.start_s, span.end_s) for span in a.spans] == [
        ("up", 0.0, 2.0),
        ("stalled", 2.0, 3.0),
        ("up", 3.0, 8.0),
        ("down", 8.0, 10.0),
    ]
    assert [(span.state, span.start_s) for span in b.spans] == [("up", 9.0)]


def test_a_report_by_somebody_else_is_about_the_replica_that_it_names() -> None:
    """The gateway tells that a replica is down: the replica's lane shows it."""
    event = Event(EventKind.REPLICA_DOWN, START_NS + SECOND, "gateway", data={"replica": "a"})
    (lane,) = replica_lanes([event], START_NS, 2.0)
    assert (lane.name, lane.spans[-1].state) == ("a", "down")


def test_a_reaction_belongs_to_the_fault_that_caused_it() -> None:
    """By attribution for alarms, by replica and time for the rest, and to nobody before any."""
    case, record = one_occurrence()
    early, at, late = (record.fired_ns + k * SECOND for k in (-1, 1, 9))
    failed = {"cause": "state", "action": "recompute"}
    events = (
        Event(EventKind.PAGES_QUARANTINED, early, record.replica),
        Event(EventKind.CHECK_FAILED, at, "elsewhere", data=failed),
        Event(EventKind.WEIGHT_REPAIRED, at, record.replica),
        Event(EventKind.REQUEST_REFUSED, late, record.replica),
    )
    seen = replace(detection(record, expected=True), event_index=1)
    found = reactions_by_fault(replace(case, events=events), (seen,))
    assert found == {
        record.planned.fault: ("state repaired, request recomputed", "weight repaired")
    }


def test_phases_cover_the_run_without_overlap() -> None:
    """Before, during and after meet at the first order and the last heal."""
    case, _ = passing()
    spans = phase_spans(case)
    assert [span.state for span in spans] == ["before", "during", "after"]
    assert spans[0].end_s == spans[1].start_s
    assert spans[1].end_s == spans[2].start_s
    assert [span.state for span in phase_spans(replace(case, t_faults_ns=0))] == ["whole run"]


def test_a_run_that_never_set_its_bounds_gets_them_from_its_history() -> None:
    """An abort before the end leaves zeros; the axis still covers every event."""
    case, _ = passing()
    bounded = with_bounds(replace(case, t_start_ns=0, t_end_ns=0))
    assert bounded.t_start_ns == START_NS
    assert bounded.t_end_ns >= max(record.t_end_ns for record in case.records)


def test_only_wrong_answers_are_shown_as_differing() -> None:
    """A cancelled prefix and a malformed request are right as they are; a wrong token is not."""
    case, _ = passing()
    good, cut, wrong = case.records[:3]
    cut = replace(cut, outcome=Outcome.CANCELLED, chunks=cut.chunks[:4])
    chunks = [*wrong.chunks[:-1], replace(wrong.chunks[-1], token=1)]
    wrong = replace(wrong, chunks=chunks)
    odd = replace(wrong, request_id="odd", malformed="empty")
    short = replace(good, request_id="short", chunks=good.chunks[:-1])
    case = replace(case, records=(good, cut, wrong, odd, short))
    assert set(triages_of(case)) == {wrong.request_id, "short"}


def test_silent_answers_come_before_labelled_ones_and_categories_mix() -> None:
    """The list is cut, yet every category that occurs is in it."""
    case, _ = violated()
    diffs, total = differing(case, triages_of(case))
    assert len(diffs) == DIFFS_MOST < total
    assert {diff.category for diff in diffs} == {"foreign", "confident flip", "structural"}
    labelled = [bool(diff.labels) for diff in diffs]
    assert labelled == sorted(labelled)
    assert all(any(cell.differs for cell in diff.cells) for diff in diffs)
