"""Faults as rows of the fault × detector table, and the alarms that belong to none."""

from collections import Counter
from collections.abc import Mapping, Sequence

from tocsin.chaos.attribution import Detection
from tocsin.chaos.case import Case
from tocsin.chaos.contract import Fault
from tocsin.chaos.report.model import (
    DetectorCount,
    FalseAlarm,
    FaultRow,
)
from tocsin.chaos.report.reactions import reactions_by_fault
from tocsin.chaos.report.wording import short
from tocsin.chaos.verdict import FaultSummary, RunVerdict

_MARKS_MOST = 240
_FALSE_ALARMS_MOST = 20
_EVIDENCE_LETTERS = 300

Sightings = Mapping[str, Sequence[Detection]]


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


def lane_names_of(faults: Sequence[FaultSummary]) -> dict[str, str]:
    """The same where room is scarce: the id alone tells apart what is of one kind."""
    names = names_of(faults)
    return {one.id: one.kind if names[one.id] == one.kind else one.id for one in faults}


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


def _since(case: Case, t_ns: int) -> float:
    return max(0.0, (t_ns - case.t_start_ns) / 1e9)
