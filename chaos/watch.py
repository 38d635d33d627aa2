"""Events as they come in during a run: what was detected so far, and which faults were seen."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from tocsin.chaos.attribution import detectors_of, subject
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
    _alarms: list[tuple[int, str, tuple[str, ...]]] = field(default_factory=list)

    def take(self, events: Iterable[Event]) -> None:
        """Take in new events."""
        for event in events:
            self.events.append(event)
            names = detectors_of(event)
            if names:
                self.detections += 1
                self.last = f"{names[0]} on {subject(event)}"
                self._alarms.append((event.t_ns, subject(event), names))

    def seen(self, record: OccurrenceRecord) -> bool:
        """Whether a detector that means this fault has alarmed since it fired."""
        if record.planned.scope is Scope.CLIENT:
            return record.settled
        return self.first_seen_ns(record) > 0

    def first_seen_ns(self, record: OccurrenceRecord) -> int:
        """When a detector that means this fault alarmed first since it fired, 0: none has."""
        if not record.fired:
            return 0
        wanted = set(record.planned.expect.detectors)
        seen = [
            t_ns
            for t_ns, replica, names in self._alarms
            if t_ns >= record.fired_ns and replica == record.replica and wanted & set(names)
        ]
        return min(seen, default=0)
