"""The life of each occurrence as marks and windows of the timeline, few enough to be seen."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import groupby

from tocsin.chaos.attribution import Detection
from tocsin.chaos.case import Case, OccurrenceRecord
from tocsin.chaos.report.incidents import lane_names_of
from tocsin.chaos.report.model import Lane, Mark, MarkKind, Span
from tocsin.chaos.report.wording import milliseconds, short
from tocsin.chaos.verdict import RunVerdict

_WINDOWS_MOST = 600
_LABEL_LETTERS = 150

Sightings = Mapping[str, Sequence[Detection]]


def sightings_of(verdict: RunVerdict) -> dict[str, list[Detection]]:
    """Detections by the occurrence that they are of, earliest first; false alarms left out."""
    found: dict[str, list[Detection]] = defaultdict(list)
    for detection in sorted(verdict.detections, key=lambda detection: detection.t_ns):
        if detection.occurrence:
            found[detection.occurrence].append(detection)
    return found


def fault_lanes(case: Case, verdict: RunVerdict, end_s: float, marks_most: int) -> tuple[Lane, ...]:
    """One lane a fault of the experiment, with the lifecycle of its occurrences.

    Args:
        marks_most: marks of all lanes together; beyond that, neighbours become one with a count.
    """
    sightings = sightings_of(verdict)
    required = {fault.id: fault.required for fault in verdict.faults}
    lane_most = marks_most // max(1, len(required))
    by_fault: dict[str, list[OccurrenceRecord]] = defaultdict(list)
    for record in case.occurrences:
        by_fault[record.planned.fault].append(record)
    lanes = [
        Lane(
            name,
            marks=thinned(
                _marks(by_fault[fault], case, sightings, required[fault]), end_s, lane_most
            ),
            spans=fewer(_windows(by_fault[fault], case, name), end_s, lane_most // 2),
        )
        for fault, name in lane_names_of(verdict.faults).items()
    ]
    alarms = [
        Mark(_since(case, one.t_ns), MarkKind.MISSED, f"{one.detector} alarmed without a fault")
        for one in verdict.detections
        if not one.occurrence
    ]
    if alarms:
        lanes.append(Lane("false alarms", marks=thinned(alarms, end_s, lane_most)))
    return tuple(lanes)


def active_windows(case: Case) -> tuple[Span, ...]:
    """When any fault was active, overlapping windows joined."""
    end_s = _since(case, case.t_end_ns)
    return fewer(_windows(case.occurrences, case, ""), end_s, _WINDOWS_MOST)


def fewer(spans: Sequence[Span], end_s: float, most: int) -> tuple[Span, ...]:
    """Overlapping spans as one; if there are still too many, neighbours as one too."""
    joined = merged(spans)
    return joined if len(joined) <= most else merged(joined, end_s / max(1, most))


def merged(spans: Sequence[Span], gap_s: float = 0.0) -> tuple[Span, ...]:
    """Spans no further apart than the gap as one, which names the first few of them."""
    result: list[Span] = []
    for span in sorted(spans, key=lambda span: span.start_s):
        last = result[-1] if result else None
        if last is None or span.start_s > last.end_s + gap_s:
            result.append(span)
            continue
        known = span.label in last.label or len(last.label) > _LABEL_LETTERS
        label = last.label if known else f"{last.label}, {span.label}"
        result[-1] = Span(last.start_s, max(last.end_s, span.end_s), last.state, label)
    return tuple(result)


def thinned(marks: Sequence[Mark], end_s: float, most: int) -> tuple[Mark, ...]:
    """At most so many marks: those of one kind and one place become one with a count."""
    if len(marks) <= most:
        return tuple(marks)
    slot_s = max(end_s, 1e-3) / max(1, most // len(MarkKind) - 1)

    def place(mark: Mark) -> tuple[str, int]:
        return mark.kind.value, int(mark.t_s / slot_s)

    result: list[Mark] = []
    for _, same in groupby(sorted(marks, key=place), key=place):
        crowd = list(same)
        label = crowd[0].label if len(crowd) == 1 else f"{len(crowd)} × {crowd[0].kind.value}"
        result.append(Mark(crowd[0].t_s, crowd[0].kind, label, len(crowd)))
    return tuple(result)


def _windows(records: Sequence[OccurrenceRecord], case: Case, name: str) -> list[Span]:
    """From firing to healing; what was never healed lasts to the end of the run."""
    return [
        Span(
            _since(case, record.fired_ns),
            _since(case, record.healed_ns or case.t_end_ns),
            "active",
            name or record.planned.id,
        )
        for record in records
        if record.fired_ns
    ]


def _marks(
    records: Sequence[OccurrenceRecord], case: Case, sightings: Sightings, required: bool
) -> list[Mark]:
    marks: list[Mark] = []
    for record in records:
        marks.extend(_lifecycle(record, case, sightings.get(record.planned.id, ()), required))
    return marks


def _lifecycle(
    record: OccurrenceRecord, case: Case, seen: Sequence[Detection], required: bool
) -> list[Mark]:
    """The marks of one occurrence."""
    name, where = record.planned.id, f" on {record.replica}" if record.replica else ""
    ordered_s = _since(case, record.ordered_ns or record.fired_ns or case.t_end_ns)
    if not record.fired:
        why = record.error or f"its state is {record.state}"
        return [Mark(ordered_s, MarkKind.MISSED, _label(f"{name} never fired: {why}"))]
    fired_s = _since(case, record.fired_ns)
    place = f": {record.evidence.place}" if record.evidence else ""
    marks = [Mark(fired_s, MarkKind.FIRED, _label(f"{name} fired{where}{place}"))]
    if record.ordered_ns:
        marks.append(Mark(ordered_s, MarkKind.PLANNED, f"{name} ordered"))
    marks.extend(_sighting(name, seen, fired_s, required, case))
    if record.healed:
        took = milliseconds((record.healed_ns - record.fired_ns) / 1e6)
        healed_s = _since(case, record.healed_ns or record.fired_ns)
        marks.append(Mark(healed_s, MarkKind.HEALED, f"{name} healed after {took}, verified"))
    else:
        why = record.error or f"its state is {record.state}"
        marks.append(Mark(fired_s, MarkKind.MISSED, _label(f"{name} not healed: {why}")))
    return marks


def _sighting(
    name: str, seen: Sequence[Detection], fired_s: float, required: bool, case: Case
) -> list[Mark]:
    """When the fault was seen by a detector that was meant to, or that it was not."""
    names = ", ".join(dict.fromkeys(one.detector for one in seen))
    first = next((one for one in seen if one.expected), None)
    if first is not None:
        words = f"{name} detected after {milliseconds(first.latency_ms)} by {names}"
        return [Mark(_since(case, first.t_ns), MarkKind.DETECTED, _label(words))]
    if not required:
        return []
    words = f"{name} seen only by {names}" if names else f"{name} was not detected"
    return [Mark(fired_s, MarkKind.MISSED, _label(words))]


def _label(words: str) -> str:
    return short(words, _LABEL_LETTERS)


def _since(case: Case, t_ns: int) -> float:
    return max(0.0, (t_ns - case.t_start_ns) / 1e9)
