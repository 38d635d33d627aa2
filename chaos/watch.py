"""Events as they come in during a run: what was detected so far, and which faults were seen."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from tocsin.chaos.attribution import BY_CLIENTS, concerns, detectors_of, subject
from tocsin.chaos.case import OccurrenceRecord
from tocsin.core.faulting import Scope
from tocsin.core.history import Event


@dataclass(slots=True)
class Watch:
    """Keeps all events of a run and answers questions while it runs.

    Attributes:
        detections: alarms so far; last: the latest one in words.
    """

    events: list[Event] = field(default_factory=list)
    detections: int = 0
    last: str = ""
    _named: dict[str, int] = field(default_factory=dict)
    _alarms: list[tuple[Event, tuple[str, ...]]] = field(default_factory=list)

    def take(self, events: Iterable[Event]) -> None:
        """Take in new events."""
        for event in events:
            self.events.append(event)
            if event.kind in BY_CLIENTS:
                self._named.setdefault(event.request_id, event.t_ns)
            names = detectors_of(event)
            if names:
                self.detections += 1
                self.last = f"{names[0]} on {subject(event)}"
                self._alarms.append((event, names))

    def seen(self, record: OccurrenceRecord) -> bool:
        """Whether a detector that means this fault has alarmed since it fired."""
        if record.planned.scope is Scope.CLIENT:
            return record.settled
        return self.first_seen_ns(record) > 0

    def first_named_ns(self, record: OccurrenceRecord) -> int:
        """When the service first told of a request of a fault of the clients, 0: it has not."""
        named = record.evidence.requests if record.evidence else ()
        wanted = {name for name in named if name in self._named}
        return min((self._named[name] for name in wanted), default=0)

    def first_seen_ns(self, record: OccurrenceRecord) -> int:
        """When a detector that means this fault alarmed first since it fired, 0: none has."""
        if not record.fired:
            return 0
        wanted = set(record.planned.expect.detectors)
        seen = [
            event.t_ns
            for event, names in self._alarms
            if event.t_ns >= record.fired_ns and wanted & set(names) and concerns(event, record)
        ]
        return min(seen, default=0)
