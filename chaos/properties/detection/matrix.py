"""Every fault is seen by a detector that means it, and nothing else is seen."""

from tocsin.chaos.attribution import Attribution, Detection, attribute, check_errors
from tocsin.chaos.case import Case, OccurrenceRecord, PropertyVerdict, Violation, conclude
from tocsin.chaos.contract import prop

_OF_THE_HOST = ("service.heartbeat", "service.straggler", "service.clock")


@prop(
    "detection.matrix",
    sins=("late_detection", "wrong_detector", "missed_detection", "false_alarm"),
    advice="see the fault's row in the matrix: which check looked at that place, and when",
)
def judge(case: Case) -> PropertyVerdict:
    """Each required fault is seen by an allowed detector in time; no alarm is without a fault.

    A stalled heartbeat, slow steps or a clock that was set outside all faults are no false alarms:
    the host did that. They are noted.
    """
    found = attribute(case)
    checked = 0
    violations: list[Violation] = []
    for record in case.occurrences:
        if not record.fired or record.planned.expect.detect == "optional":
            continue
        checked += 1
        reason = _reason(record, found)
        if reason:
            violations.append(
                Violation(
                    f"{record.planned.id}: {reason}",
                    occurrence=record.planned.id,
                    evidence={"seen_by": _seen(found, record)},
                )
            )
    alarms = [one for one in found.false_alarms if one.detector not in _OF_THE_HOST]
    allowed = int(case.spec.check_params(judge.id).get("max_false_alarms", 0))
    if len(_events(alarms)) > allowed:
        violations += [
            Violation(
                f"{one.detector} alarmed on {one.replica} with no fault active there",
                evidence={"failure_id": one.failure_id, "requests": list(one.requests)},
            )
            for one in alarms
        ]
    return conclude(
        judge.id,
        checked,
        violations,
        nothing="no fault fired",
        notes=_notes(case, found),
    )


def _reason(record: OccurrenceRecord, found: Attribution) -> str:
    expect = record.planned.expect
    mine = found.by_occurrence.get(record.planned.id, ())
    if expect.detect == "forbidden":
        return f"seen by {mine[0].detector}, expected to be let pass" if mine else ""
    first = found.first_expected(record.planned.id)
    meant = " or ".join(expect.detectors)
    if first is None:
        others = ", ".join(_seen(found, record))
        return f"not seen by {meant}" + (f", only by {others}" if others else "")
    if first.latency_ms is not None and first.latency_ms > expect.within_s * 1e3:
        return (
            f"seen by {first.detector} after {first.latency_ms:.0f} ms, "
            f"expected within {expect.within_s * 1e3:.0f} ms"
        )
    return ""


def _seen(found: Attribution, record: OccurrenceRecord) -> list[str]:
    return list(dict.fromkeys(d.detector for d in found.by_occurrence.get(record.planned.id, ())))


def _events(alarms: list[Detection]) -> set[int]:
    return {one.event_index for one in alarms}


def _notes(case: Case, found: Attribution) -> tuple[str, ...]:
    hosts = [one for one in found.false_alarms if one.detector in _OF_THE_HOST]
    errors = check_errors(case.events)
    notes = []
    stalls = sum(one.detector == _OF_THE_HOST[0] for one in hosts)
    if stalls:
        notes.append(f"{stalls} stalled heartbeats outside all faults: the host was busy")
    if len(hosts) > stalls:
        notes.append(f"{len(hosts) - stalls} readings of slow steps or a clock that was set")
    if errors:
        notes.append(f"{len(errors)} reports of checks that raised: {errors[0].data.get('error')}")
    return tuple(notes)
