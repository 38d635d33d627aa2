"""Which alarm belongs to which fault: by replica and time, the meant detector first."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tocsin.chaos.case import Case, OccurrenceRecord
from tocsin.core.faulting import Scope
from tocsin.core.history import ENDED_BY, NOTICED_BY, SHED, Event, EventKind, RequestRecord

BY_CLIENTS = {
    EventKind.PAGES_FREED: "service.abort",
    EventKind.CLIENT_DROPPED: "service.slow_client",
    EventKind.PROMPT_ESCAPED: "service.template",
}
"""What the service tells of one request: an alarm only of a fault that made that request."""
CHECK_ERROR = "service.check_error"
"""A check raised: a mistake in the checker, and an alarm only of a fault that lets it raise."""
_WITH_A_NODE = (EventKind.REPLICA_DOWN, EventKind.REPLICA_STALLED)
_NODE_CHARS = 12
"""Of a node's id, as the evidence of a fault on it names it."""
_SKEW_NS = 50_000_000
"""Two processes of one machine read one clock; this much the order of their writes may differ."""


@dataclass(frozen=True, slots=True)
class Detection:
    """One detector that alarmed.

    Attributes:
        occurrence: the fault it belongs to; empty: none, a false alarm.
        expected: the detector is one of those that are meant to see this fault.
        latency_ms: from injection to alarm; None for a false alarm.
        event_index: index into the events of the case, -1 for what the client itself saw.
        standing: it was raised for an earlier fault and stood through this one.
    """

    detector: str
    t_ns: int
    replica: str
    occurrence: str = ""
    expected: bool = False
    failure_id: str = ""
    priority: str = ""
    latency_ms: float | None = None
    event_index: int = -1
    requests: tuple[str, ...] = ()
    standing: bool = False


@dataclass(frozen=True, slots=True)
class Attribution:
    """All alarms of a run, sorted out."""

    detections: tuple[Detection, ...]
    by_occurrence: Mapping[str, tuple[Detection, ...]] = field(default_factory=dict)
    false_alarms: tuple[Detection, ...] = ()

    def first_expected(self, occurrence: str) -> Detection | None:
        """The earliest alarm of a meant detector, None when there was none."""
        return next((d for d in self.by_occurrence.get(occurrence, ()) if d.expected), None)


def subject(event: Event) -> str:
    """The replica that an event is about, whoever tells it."""
    return str(event.data.get("replica") or event.replica)


def check_ids(data: Mapping[str, Any]) -> tuple[str, ...]:
    """Checks named by the record of a failure, in order, each once."""
    found = [str(finding["check"]) for finding in data.get("findings", ()) if "check" in finding]
    found += [str(one) for one in data.get("checks", ())]
    if "check" in data:
        found.append(str(data["check"]))
    return tuple(dict.fromkeys(found))


def check_errors(events: Iterable[Event]) -> tuple[Event, ...]:
    """Events of checks that raised: mistakes in the checker, no alarms."""
    return tuple(
        event
        for event in events
        if event.kind is EventKind.CHECK_FAILED and event.data.get("cause") == "check_error"
    )


def attribute(case: Case) -> Attribution:
    """Sort out every alarm of a run.

    An alarm belongs to a fault of the same replica that was active: from its injection until it
    was healed and its time to be seen is over. Of several, the one that means this detector, then
    the latest, has it. An alarm that stands is not raised again for a fault that follows at once.
    """
    by_replica: dict[str, list[OccurrenceRecord]] = defaultdict(list)
    for record in case.occurrences:
        if record.fired and record.planned.scope is not Scope.CLIENT:
            by_replica[record.replica].append(record)
    found: list[Detection] = []
    for index, event in enumerate(case.events):
        names = detectors_of(event)
        for name in names:
            one = _place(event, index, name, names, _candidates(event, by_replica))
            if one.expected or name != CHECK_ERROR:
                found.append(one)
    found += _by_clients(case)
    found += _standing(case, found)
    found.sort(key=lambda one: one.t_ns)
    grouped: dict[str, list[Detection]] = defaultdict(list)
    for one in found:
        if one.occurrence:
            grouped[one.occurrence].append(one)
    alarms = tuple(one for one in found if not one.occurrence)
    return Attribution(tuple(found), {k: tuple(v) for k, v in grouped.items()}, alarms)


def concerns(event: Event, one: OccurrenceRecord) -> bool:
    """Whether an alarm of the service, about a replica, may be of this fault.

    Who failed to start is nobody yet: it was to replace the replica that a fault took. With a node
    go all its replicas. A fault on Ray itself may be felt by any replica.
    """
    if one.replica == subject(event):
        return True
    if one.planned.scope is Scope.NODE and event.kind in _WITH_A_NODE:
        node = str(event.data.get("node", ""))[:_NODE_CHARS]
        return bool(node) and one.evidence is not None and node in one.evidence.place
    if event.kind is EventKind.START_FAILED:
        return one.planned.scope.takes_replica
    return one.planned.scope is Scope.CLUSTER and event.kind in NOTICED_BY


def _candidates(
    event: Event, by_replica: Mapping[str, list[OccurrenceRecord]]
) -> list[OccurrenceRecord]:
    return [one for records in by_replica.values() for one in records if concerns(event, one)]


def detectors_of(event: Event) -> tuple[str, ...]:
    """The detectors that speak through an event; none for an event that is no alarm."""
    if event.kind is EventKind.CHECK_FAILED:
        broken = event.data.get("cause") == "check_error"
        return (CHECK_ERROR,) if broken else check_ids(event.data)
    service = NOTICED_BY.get(event.kind)
    return (service,) if service else ()


def window_ns(record: OccurrenceRecord) -> tuple[int, int]:
    """When an alarm may be this fault's: monotonic ns; the end is far away while it is unhealed."""
    grace_ns = int(record.planned.expect.within_s * 1e9)
    end = record.healed_ns + grace_ns if record.healed_ns else 2**62
    return record.fired_ns - _SKEW_NS, max(end, record.fired_ns + grace_ns)


def _place(
    event: Event,
    index: int,
    name: str,
    names: tuple[str, ...],
    candidates: list[OccurrenceRecord],
) -> Detection:
    """The detection of one detector; the whole event goes to one fault."""
    active = [one for one in candidates if _within(event.t_ns, window_ns(one))]
    best = max(
        active,
        key=lambda one: (bool(set(names) & set(one.planned.expect.detectors)), one.fired_ns),
        default=None,
    )
    priorities = [str(f.get("priority", "")) for f in event.data.get("findings", ())]
    return Detection(
        detector=name,
        t_ns=event.t_ns,
        replica=subject(event),
        occurrence=best.planned.id if best else "",
        expected=best is not None and name in best.planned.expect.detectors,
        failure_id=str(event.data.get("failure_id", "")),
        priority=str(event.data.get("priority", "")) or min(filter(None, priorities), default=""),
        latency_ms=max(0.0, (event.t_ns - best.fired_ns) / 1e6) if best else None,
        event_index=index,
        requests=tuple(event.data.get("request_ids", ())),
    )


def _standing(case: Case, found: Sequence[Detection]) -> list[Detection]:
    """Alarms of an earlier fault of the same kind that stood until the later one was healed.

    That they were called off soon after it, and no sooner, shows that their detector saw both; an
    alarm that is never called off shows nothing.
    """
    seen = {one.occurrence for one in found if one.expected}
    kinds = {one.planned.id: one.planned.kind for one in case.occurrences}
    more = []
    for record in case.occurrences:
        if not record.fired or not record.healed_ns or record.planned.id in seen:
            continue
        for one in found:
            if (
                one.expected
                and kinds[one.occurrence] == record.planned.kind
                and one.replica == record.replica
                and one.t_ns <= record.fired_ns
                and record.healed_ns <= _called_off_ns(case, one) <= window_ns(record)[1]
            ):
                more.append(
                    replace(one, occurrence=record.planned.id, latency_ms=0.0, standing=True)
                )
                break
    return more


def _called_off_ns(case: Case, alarm: Detection) -> int:
    """When an alarm was called off; 0: never, or it is none that stands."""
    if alarm.event_index < 0:
        return 0
    end = ENDED_BY.get(case.events[alarm.event_index].kind)
    return next(
        (
            event.t_ns
            for event in case.events
            if event.kind is end and event.t_ns >= alarm.t_ns and subject(event) == alarm.replica
        ),
        0,
    )


def _within(t_ns: int, window: tuple[int, int]) -> bool:
    return window[0] <= t_ns <= window[1]


def _by_clients(case: Case) -> list[Detection]:
    """What became of the requests that faults of the clients made: each detector once a fault."""
    records = {record.request_id: record for record in case.records}
    told: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for event in case.events:
        if event.kind in BY_CLIENTS:
            told[event.request_id].append((BY_CLIENTS[event.kind], event.t_ns))
    found = []
    for one in case.occurrences:
        if one.planned.scope is not Scope.CLIENT or one.evidence is None:
            continue
        seen: dict[str, list[tuple[int, str]]] = defaultdict(list)
        for request_id in one.evidence.requests:
            record = records.get(request_id)
            names = list(told.get(request_id, ()))
            if record is not None:
                names += [(name, record.t_end_ns) for name in _answered(record)]
            for name, t_ns in names:
                seen[name].append((t_ns, request_id))
        found += [_of_clients(one, name, sorted(alarms)) for name, alarms in seen.items()]
    return found


def _answered(record: RequestRecord) -> list[str]:
    """Detectors that speak through what a client saw: an explicit refusal, an answer repeated."""
    names = []
    away = record.http_status in SHED and record.retry_after and not record.chunks
    if record.error and (away or (record.malformed and 400 <= record.http_status < 500)):
        names.append("service.admission")
    if record.replayed:
        names.append("service.idempotency")
    return names


def _of_clients(
    one: OccurrenceRecord, detector: str, alarms: Sequence[tuple[int, str]]
) -> Detection:
    t_ns = alarms[0][0]
    return Detection(
        detector=detector,
        t_ns=t_ns,
        replica="client",
        occurrence=one.planned.id,
        expected=detector in one.planned.expect.detectors,
        latency_ms=max(0.0, (t_ns - one.fired_ns) / 1e6),
        requests=tuple(request_id for _, request_id in alarms),
    )
