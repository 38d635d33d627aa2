"""How the service answered each fault: what it did where and while the fault was active."""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence

from tocsin.chaos.attribution import Detection, subject
from tocsin.chaos.case import Case, OccurrenceRecord
from tocsin.core.history import Event, EventKind
from tocsin.core.terms import Action, Cause

_GRACE_NS = 3_000_000_000
_WORDS = {
    EventKind.PAGES_QUARANTINED: "page quarantined",
    EventKind.WEIGHT_REPAIRED: "weight repaired",
    EventKind.REQUEST_RECOMPUTED: "request recomputed",
    EventKind.REQUEST_RESUMED: "resumed elsewhere",
    EventKind.REQUEST_REJECTED: "request rejected",
    EventKind.REQUEST_REFUSED: "request refused",
    EventKind.REPLICA_RESUMED: "replica came back",
    EventKind.REPLICA_UP: "replica restarted",
}

_CAUSES: dict[str, str] = {
    Cause.TRANSIENT: "clean when run again",
    Cause.PERSISTENT: "clean on the fallback",
    Cause.STATE: "state repaired",
    Cause.LEGITIMATE: "alarm refuted",
    Cause.UNRESOLVED: "nothing helped",
}
_ACTIONS: dict[str, str] = {
    Action.RELEASE: "token released",
    Action.RECOMPUTE: "request recomputed",
    Action.REFUSE: "request refused",
}


def reactions_by_fault(case: Case, detections: Sequence[Detection]) -> dict[str, tuple[str, ...]]:
    """Reactions of the service by fault id, the most frequent first.

    An alarm belongs to the fault that it was attributed to. Any other event belongs to the latest
    fault that fired before it on the same replica, until that fault is healed and a grace of
    three seconds is over. What the gateway does for a replica (resuming its requests) belongs to
    the latest fault anywhere.
    """
    fault_of = {one.planned.id: one.planned.fault for one in case.occurrences}
    alarms = {one.event_index: fault_of.get(one.occurrence, "") for one in detections}
    fired = sorted((one for one in case.occurrences if one.fired_ns), key=lambda one: one.fired_ns)
    by_replica: dict[str, list[OccurrenceRecord]] = defaultdict(list)
    for record in fired:
        by_replica[record.replica].append(record)
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for index, event in enumerate(case.events):
        words = _reaction(event)
        if not words:
            continue
        if index in alarms:
            counts[alarms[index]][words] += 1
            continue
        candidates = by_replica.get(subject(event)) or fired
        cause = _latest(candidates, event.t_ns, case.t_end_ns)
        if cause is not None:
            counts[cause.planned.fault][words] += 1
    return {
        fault: tuple(words for words, _ in counter.most_common(4))
        for fault, counter in counts.items()
    }


def _reaction(event: Event) -> str:
    if event.kind is EventKind.BREAKER:
        after = str(event.data.get("after", "changed"))
        return f"breaker {after.replace('_', '-')}"
    if event.kind is EventKind.DEGRADED:
        return f"degraded: {event.data.get('reason', '?')}" if event.data.get("on", True) else ""
    if event.kind is EventKind.CHECK_FAILED:
        cause = _CAUSES.get(str(event.data.get("cause", "")), "")
        action = _ACTIONS.get(str(event.data.get("action", "")), "")
        return ", ".join(filter(None, (cause, action)))
    return _WORDS.get(event.kind, "")


def _latest(records: list[OccurrenceRecord], t_ns: int, end_ns: int) -> OccurrenceRecord | None:
    """The last of the records that fired before the time, if it still counts."""
    k = bisect_left(records, t_ns + 1, key=lambda record: record.fired_ns)
    if not k:
        return None
    record = records[k - 1]
    return record if t_ns <= (record.healed_ns or end_ns) + _GRACE_NS else None
