"""Degraded answers say so, and only they do."""

from dataclasses import dataclass

from tocsin.chaos.attribution import subject
from tocsin.chaos.case import Case, PropertyVerdict, Violation, conclude
from tocsin.chaos.contract import prop
from tocsin.core.history import Event, EventKind, Outcome, RequestRecord

_SLACK_NS = 1_000_000_000
"""Delivery lags release, and a step straddles the change: this much either way is no proof."""


@dataclass(slots=True)
class _Interval:
    """A replica served in a degraded way for this reason."""

    replica: str
    reason: str
    start_ns: int
    end_ns: int


@prop(
    "degraded.labelled",
    sins=("remove_degraded_flag", "add_degraded_flag"),
    advice="follow the label from the settlement of the step to the body and the header",
    conditional=True,
)
def judge(case: Case) -> PropertyVerdict:
    """An answer is labelled if, and only if, the servers' events say it was served degraded.

    Events that name the request bind it; for those that concern a whole replica, a request whose
    tokens all fell well inside must be labelled, and a label needs an overlap.
    """
    named, intervals = _evidence(case)
    checked = 0
    violations: list[Violation] = []
    for record in case.honest:
        if record.outcome is not Outcome.OK:
            continue
        must = named.get(record.request_id, set()) | _must(record, intervals)
        labels = set(record.degraded)
        if not must and not labels and not record.degraded_header:
            continue
        checked += 1
        may = must | {one.reason for one in intervals if _overlaps(record, one)}
        for text in _reasons(record, labels, must, may):
            violations.append(
                Violation(
                    f"{record.request_id}: {text}",
                    request_id=record.request_id,
                    evidence={"labels": sorted(labels), "must": sorted(must), "may": sorted(may)},
                )
            )
    # Both directions were looked at for every completed answer; with no event and no label the
    # statement still holds, but nothing was shown.
    return conclude(
        judge.id,
        checked,
        violations,
        nothing="no answer was served degraded, by its label or by the servers' events",
    )


def _reasons(record: RequestRecord, labels: set[str], must: set[str], may: set[str]) -> list[str]:
    found = [f"served {reason} and not labelled so" for reason in sorted(must - labels)]
    found += [f"labelled {label}, no event says why" for label in sorted(labels - may)]
    header = {part.strip() for part in record.degraded_header.split(",") if part.strip()}
    if header - labels:
        found.append(f"header says {sorted(header - labels)}, the body does not")
    return found


def _evidence(case: Case) -> tuple[dict[str, set[str]], list[_Interval]]:
    """Reasons by request that was named, and intervals of whole replicas."""
    named: dict[str, set[str]] = {}
    intervals: list[_Interval] = []
    running: dict[tuple[str, str], _Interval] = {}
    for event in sorted(case.events, key=lambda one: one.t_ns):
        for request_id, reason in _named(event):
            named.setdefault(request_id, set()).add(reason)
        replica = subject(event)
        for reason, on in _switches(event, running):
            key = (replica, reason)
            if on and key not in running:
                running[key] = _Interval(replica, reason, event.t_ns, 2**62)
                intervals.append(running[key])
            elif not on and key in running:
                running.pop(key).end_ns = event.t_ns
    return named, intervals


def _named(event: Event) -> list[tuple[str, str]]:
    if event.kind is EventKind.DEGRADED and event.request_id and event.data.get("on", True):
        return [(event.request_id, str(event.data.get("reason", "")))]
    if event.kind is EventKind.CHECK_FAILED:
        return [
            (str(request_id), str(reason))
            for request_id in event.data.get("released", ())
            for reason in event.data.get("degraded", ())
        ]
    return []


def _switches(event: Event, running: dict[tuple[str, str], _Interval]) -> list[tuple[str, bool]]:
    """Reasons that an event turns on or off for its whole replica."""
    if event.kind is EventKind.DEGRADED and not event.request_id:
        return [(str(event.data.get("reason", "")), bool(event.data.get("on", True)))]
    if event.kind is EventKind.REPLICA_DOWN:
        return [(reason, False) for replica, reason in list(running) if replica == subject(event)]
    return []


def _must(record: RequestRecord, intervals: list[_Interval]) -> set[str]:
    """Reasons of the intervals that hold all tokens of a request, well inside."""
    if len(record.attempts) != 1 or not record.chunks:
        return set()
    first, last = record.t_invoke_ns, record.chunks[-1].t_ns
    return {
        one.reason
        for one in intervals
        if one.replica == record.attempts[0] and one.start_ns <= first and last <= one.end_ns
    }


def _overlaps(record: RequestRecord, one: _Interval) -> bool:
    end = record.t_end_ns or 2**62
    return (
        (not record.attempts or one.replica in record.attempts)
        and one.start_ns - _SLACK_NS <= end
        and record.t_invoke_ns <= one.end_ns + _SLACK_NS
    )
