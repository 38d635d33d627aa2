"""Counts a run while it lasts: each occurrence once for each thing that becomes of it."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from tocsin.chaos.case import OccurrenceRecord
from tocsin.chaos.watch import Watch
from tocsin.core.chaos_meter import ChaosMeter
from tocsin.core.faulting import Scope


@dataclass(slots=True)
class Tally:
    """Compares the records with what was told already, and tells the rest."""

    meter: ChaosMeter
    _told: set[tuple[str, str]] = field(default_factory=set)
    _active: Counter[str] = field(default_factory=Counter)

    def look(self, records: Iterable[OccurrenceRecord], watch: Watch) -> None:
        """Tell what is new."""
        active: Counter[str] = Counter()
        for record in records:
            kind = record.planned.kind
            active[kind] += record.fired and not record.settled
            if record.verified and self._first("injected", record):
                self.meter.injected(kind)
            if record.healed and record.verified and self._first("healed", record):
                self.meter.healed(kind)
            seen_ns = _seen_ns(record, watch) if record.verified else 0
            if seen_ns and record.verified and self._first("detected", record):
                self.meter.detected(kind, max(0.0, (seen_ns - record.fired_ns) / 1e9))
        for kind in active.keys() | self._active.keys():
            if active[kind] != self._active[kind]:
                self.meter.active(kind, active[kind])
        self._active = active

    def _first(self, what: str, record: OccurrenceRecord) -> bool:
        key = (what, record.planned.id)
        if key in self._told:
            return False
        self._told.add(key)
        return True


def _seen_ns(record: OccurrenceRecord, watch: Watch) -> int:
    """When a detector that means this fault alarmed first, 0 when none did."""
    if record.planned.scope is not Scope.CLIENT:
        return watch.first_seen_ns(record)
    return record.seen_ns or watch.first_named_ns(record)
