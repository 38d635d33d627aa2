"""Faults as lanes of the timeline and as rows of the fault × detector table."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import groupby

from tocsin.chaos.attribution import Detection
from tocsin.chaos.case import Case, OccurrenceRecord
from tocsin.chaos.contract import Fault
from tocsin.chaos.report.model import (
    DetectorCount,
    FalseAlarm,
    FaultRow,
    Lane,
    Mark,
    MarkKind,
    Span,
)
from tocsin.chaos.report.reactions import reactions_by_fault
from tocsin.chaos.report.wording import milliseconds, short
from tocsin.chaos.verdict import FaultSummary, RunVerdict

_MARKS_MOST = 240
_FALSE_ALARMS_MOST = 20
_EVIDENCE_LETTERS = 300

Sightings = Mapping[str, Sequence[Detection]]


def sightings_of(verdict: RunVerdict) -> dict[str, list[Detection]]:
    """Detections by the occurrence that they are of, earliest first; false alarms left out."""
    found: dict[str, list[Detection]] = defaultdict(list)
    for detection in sorted(verdict.detections, key=lambda detection: detection.t_ns):
        if detection.occurrence:
            found[detection.occurrence].append(detection)
    return found


def fault_rows(
    case: Case, verdict: RunVerdict, catalogue: Mapping[str, Fault]
) -> tuple[FaultRow, ...]:
    """One row a fault of the experiment, in the order of the experiment."""
    reactions = reactions_by_fault(case, verdict.detections)
    names = names_of(verdict.faults)
    return tuple(
        _row(fault, names[fault.id], case, catalogue, reactions.get(fault.id, ()))
        for fault in verdict.faults
    )


def names_of(faults: Sequence[FaultSummary]) -> dict[str, str]:
    """What to call each fault: its kind, with its id where one kind is used twice."""
    uses = Counter(fault.kind for fault in faults)
    return {
        fault.id: fault.kind if uses[fault.kind] == 1 else f"{fault.kind} ({fault.id})"
        for fault in faults
    }


def fault_lanes(case: Case, verdict: RunVerdict, end_s: float) -> tuple[Lane, ...]:
    """One lane a fault of the experiment, with the lifecycle of its occurrences."""
    sightings = sightings_of(verdict)
    required = {fault.id: fault.required for fault in verdict.faults}
    by_fault: dict[str, list[OccurrenceRecord]] = defaultdict(list)
    for record in case.occurrences:
        by_fault[record.planned.fault].append(record)
    lanes = [
        Lane(
            name,
            marks=_thinned(_marks(by_fault[fault], case, sightings, required[fault]), end_s),
            spans=merged(_windows(by_fault[fault], case, name)),
        )
        for fault, name in names_of(verdict.faults).items()
    ]
    alarms = [
        Mark(_since(case, one.t_ns), MarkKind.MISSED, f"{one.detector} alarmed without a fault")
        for one in verdict.detections
        if not one.occurrence
    ]
    if alarms:
        lanes.append(Lane("false alarms", marks=_thinned(alarms, end_s)))
    return tuple(lanes)


def false_alarms_of(case: Case, verdict: RunVerdict) -> tuple[tuple[FalseAlarm, ...], int]:
    """The first alarms that belong to no fault, and how many there are."""
    found = [one for one in verdict.detections if not one.occurrence]
    shown = tuple(
        FalseAlarm(
            _since(case, one.t_ns),
            short(one.detector, 60),
            short(one.replica, 60),
            short(one.failure_id, 40),
        )
        for one in sorted(found, key=lambda one: one.t_ns)[:_FALSE_ALARMS_MOST]
    )
    return shown, len(found)


def active_windows(case: Case) -> tuple[Span, ...]:
    """When any fault was active, overlapping windows joined."""
    return merged(_windows(case.occurrences, case, ""))


def merged(spans: Sequence[Span]) -> tuple[Span, ...]:
    """Overlapping spans as one, which names the first few of them."""
    result: list[Span] = []
    for span in sorted(spans, key=lambda span: span.start_s):
        last = result[-1] if result else None
        if last is None or span.start_s > last.end_s:
            result.append(span)
            continue
        label = last.label if len(last.label) > 160 else f"{last.label}, {span.label}"
        result[-1] = Span(last.start_s, max(last.end_s, span.end_s), last.state, label)
    return tuple(result)


def _row(
    fault: FaultSummary,
    name: str,
    case: Case,
    catalogue: Mapping[str, Fault],
    reactions: Sequence[str],
) -> FaultRow:
    records = [record for record in case.occurrences if record.planned.fault == fault.id]
    declared = catalogue.get(fault.kind)
    meant = set(declared.expect if declared else ())
    meant.update(*(record.planned.expect.detectors for record in records))
    counts = sorted(fault.detectors.items(), key=lambda item: (item[0] not in meant, -item[1]))
    first = next((record.evidence for record in records if record.evidence), None)
    words = f"{first.place}: {first.before} → {first.after}" if first else ""
    return FaultRow(
        kind=name,
        summary=declared.summary if declared else "",
        planned=fault.planned,
        fired=fault.fired,
        verified=fault.verified,
        healed=fault.healed,
        detected=fault.detected,
        required=fault.required,
        detectors=tuple(DetectorCount(one, count, one in meant) for one, count in counts),
        expected=tuple(sorted(meant)),
        detect_ms_p50=fault.mttd_ms_p50,
        detect_ms_p99=fault.mttd_ms_p99,
        reactions=tuple(reactions),
        evidence=short(words, _EVIDENCE_LETTERS),
    )


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
        return [Mark(ordered_s, MarkKind.MISSED, short(f"{name} never fired: {why}", 240))]
    fired_s = _since(case, record.fired_ns)
    place = f"\n{record.evidence.place}" if record.evidence else ""
    marks = [Mark(fired_s, MarkKind.FIRED, short(f"{name} fired{where}{place}", 240))]
    if record.ordered_ns:
        marks.append(Mark(ordered_s, MarkKind.PLANNED, f"{name} ordered"))
    marks.extend(_sighting(name, seen, fired_s, required, case))
    if record.healed:
        took = milliseconds((record.healed_ns - record.fired_ns) / 1e6)
        healed_s = _since(case, record.healed_ns or record.fired_ns)
        marks.append(Mark(healed_s, MarkKind.HEALED, f"{name} healed after {took}, verified"))
    else:
        why = record.error or f"its state is {record.state}"
        marks.append(Mark(fired_s, MarkKind.MISSED, short(f"{name} not healed: {why}", 240)))
    return marks


def _sighting(
    name: str, seen: Sequence[Detection], fired_s: float, required: bool, case: Case
) -> list[Mark]:
    """When the fault was seen by a detector that was meant to, or that it was not."""
    names = ", ".join(dict.fromkeys(one.detector for one in seen))
    first = next((one for one in seen if one.expected), None)
    if first is not None:
        words = f"{name} detected after {milliseconds(first.latency_ms)} by {names}"
        return [Mark(_since(case, first.t_ns), MarkKind.DETECTED, short(words, 240))]
    if not required:
        return []
    words = f"{name} seen only by {names}" if names else f"{name} was not detected"
    return [Mark(fired_s, MarkKind.MISSED, short(words, 240))]


def _thinned(marks: Sequence[Mark], end_s: float) -> tuple[Mark, ...]:
    """Marks of one kind that fall on one place of the axis become one with a count."""
    if len(marks) <= _MARKS_MOST:
        return tuple(marks)
    slot_s = max(end_s, 1e-3) / (_MARKS_MOST // len(MarkKind))

    def place(mark: Mark) -> tuple[str, int]:
        return mark.kind.value, int(mark.t_s / slot_s)

    result: list[Mark] = []
    for _, same in groupby(sorted(marks, key=place), key=place):
        crowd = list(same)
        label = crowd[0].label if len(crowd) == 1 else f"{len(crowd)} × {crowd[0].kind.value}"
        result.append(Mark(crowd[0].t_s, crowd[0].kind, label, len(crowd)))
    return tuple(result)


def _since(case: Case, t_ns: int) -> float:
    return max(0.0, (t_ns - case.t_start_ns) / 1e9)
