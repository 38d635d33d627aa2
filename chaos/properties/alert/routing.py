"""Each incident alerts the right people once."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from tocsin.chaos.attribution import Attribution, attribute
from tocsin.chaos.case import Case, OccurrenceRecord, PropertyVerdict, Violation, conclude
from tocsin.chaos.contract import prop
from tocsin.core.faulting import Scope
from tocsin.core.history import Event, EventKind
from tocsin.core.terms import Priority

ROUTES = {Priority.P0: "p0-page", Priority.P1: "p1-ticket", Priority.P2: "p2-archive"}
"""Whom an alert of each priority reaches: receivers of the rendered Alertmanager configuration."""
DRILLS = "drill"
"""Whom alerts of an attacked service reach instead, or besides."""
DELIVERED, INHIBITED = "ok", "inhibited"
"""Last words of an alert that is not lost: it was sent, or a graver one speaks for it."""


@prop(
    "alert.routing",
    sins=("alert_to_nobody", "alert_twice", "alert_lost", "incident_without_alert"),
    advice="follow the alert by its incident: rule, Alertmanager's grouping, route, outbox",
    conditional=True,
)
def judge(case: Case) -> PropertyVerdict:
    """One alert an incident, at the route of its priority, with its reproduction, and not lost.

    Read from the alerts that the system, or its Alertmanager, says it sent. An incident is a fault
    that a meant detector saw; its alert names a failure of it, the occurrence, the detector, or the
    replica that is gone, and fires after it. A drill's alerts end at `drill`, or there and at
    their people. Sending again what was not taken is no second alert; an alert whose last word is
    neither `ok` nor that a graver one speaks for it is lost. Where alerts tell of runs, they must.
    """
    sent: dict[tuple[str, str], list[Event]] = defaultdict(list)
    for event in case.events:
        if event.kind is EventKind.ALERT_SENT:
            sent[_text(event, "alert"), _text(event, "incident")].append(event)
    offered = "alerts" in case.facts.get("observes", ())
    if not sent and not offered:
        return conclude(judge.id, 0, [], nothing="the system does not tell which alerts it sent")
    people = set(ROUTES.values())
    pages = any(_text(one, "route") in people for events in sent.values() for one in events)
    violations = [one for key, events in sent.items() for one in _of_alert(key, events, pages)]
    missing = unalerted(case) if offered else []
    unread = next((one for one in case.events if one.kind is EventKind.ALERTS_UNREAD), None)
    unknown = ""
    if unread is not None and missing:
        unknown = f"{len(missing)} incidents without an alert, but {_text(unread, 'why')}"
        missing = []
    return conclude(
        judge.id,
        len(sent) + len(missing),
        [*violations, *missing],
        unknown="" if violations else unknown,
        nothing="there was nothing to alert of",
    )


def _text(event: Event, key: str) -> str:
    return str(event.data.get(key, "") or "")


def _of_alert(key: tuple[str, str], events: Sequence[Event], pages: bool) -> list[Violation]:
    """What is wrong with one alert of one incident, at all routes that it took.

    Args:
        pages: drills are sent on to the people whom they would wake in earnest.
    """
    alert, incident = key
    last = events[-1]
    priority = _text(last, "priority")
    wanted = ROUTES.get(Priority(priority), "") if priority in set(Priority) else ""
    by_route: dict[str, Counter[str]] = defaultdict(Counter)
    for event in events:
        by_route[_text(event, "route")][_text(event, "result")] += 1
    right = {wanted}
    if last.data.get("drill"):
        right = {wanted, DRILLS} if pages else {DRILLS}
    reasons = [
        f"priority {priority or 'none'} went to {route or 'nobody'}, not {wanted}"
        for route in sorted(set(by_route) - right)
    ]
    if set(by_route) <= right and wanted in right and wanted not in by_route:
        reasons.append(f"priority {priority} went to {', '.join(sorted(by_route))} alone")
    reasons += [
        f"was delivered {results[DELIVERED]} times"
        for results in by_route.values()
        if results[DELIVERED] > 1
    ]
    if _text(last, "result") not in (DELIVERED, INHIBITED):
        reasons.append(f"was not delivered: {_text(last, 'result') or 'no result'}")
    links = [what for what in ("run", "repro") if what in last.data or what == "repro"]
    reasons += [f"names no {what}" for what in links if not _text(last, what)]
    name = f"{alert} of incident {incident or 'unknown'}"
    evidence: Mapping[str, object] = {"results": {k: dict(v) for k, v in by_route.items()}}
    return [Violation(f"{name}: {reason}", evidence=evidence) for reason in reasons]


def unalerted(case: Case) -> list[Violation]:
    """Faults that were seen and of which nobody was told, or not with the wanted priority."""
    found = attribute(case)
    told = _told(case)
    violations = []
    for record in case.occurrences:
        if record.planned.scope is Scope.CLIENT or not record.fired:
            continue  # a request that is turned away is nobody's incident
        first = found.first_expected(record.planned.id)
        if first is None or first.standing:  # who was told of an alarm that stands knows
            continue
        priorities = {
            priority
            for name in _names(found, record)
            for priority, until_ns in told.get(name, ())
            if until_ns >= record.fired_ns
        }
        wanted = record.planned.expect.severity
        if not priorities or (wanted and wanted not in priorities):
            said = f"only with {', '.join(sorted(priorities))}" if priorities else "at all"
            text = (
                f"{record.planned.id}: nobody was alerted {said}, expected {wanted or 'an alert'}"
            )
            violations.append(Violation(text, occurrence=record.planned.id))
    return violations


def _told(case: Case) -> dict[str, list[tuple[str, int]]]:
    """By what it may be called: priorities of which people were told, and until when it fired."""
    ended = {
        _text(event, "incident"): event.t_ns
        for event in case.events
        if event.kind is EventKind.ALERT_ENDED
    }
    told: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for event in case.events:
        if event.kind is EventKind.ALERT_SENT:
            until_ns = ended.get(_text(event, "incident"), 2**62)
            names = {_text(event, key) for key in ("incident", "failure_id", "detector", "subject")}
            for name in names - {""}:
                told[name].append((_text(event, "priority"), until_ns))
    return told


def _names(found: Attribution, record: OccurrenceRecord) -> set[str]:
    """What an alert may call this incident."""
    seen = found.by_occurrence.get(record.planned.id, ())
    detectors = {one.detector for one in seen if one.expected}
    failures = {one.failure_id for one in seen if one.failure_id}
    return {record.planned.id, record.replica, *detectors, *failures}
