"""A span while nobody knows yet whether it is kept: plain data, a microsecond to write.

Of a hundred requests ninety-nine are dropped. Only those that are kept become OpenTelemetry spans
(`assemble`), on another thread and with the ids and times that were noted here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tocsin.ray_jobs.tracing.context import TraceContext

Value = str | bool | int | float | tuple[str, ...]

NOTES_MAX = 128
"""Events of one span; a storm of failures must not grow without end. More are counted."""


class Kind(StrEnum):
    """Kinds of spans in use."""

    SERVER = "server"
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class Note:
    """A span event: something that happened at one moment."""

    t_ns: int
    name: str
    attributes: Mapping[str, Value]


@dataclass(slots=True)
class SpanRecord:
    """What will be a span if it is kept.

    Attributes:
        begun_ns, ended_ns: monotonic nanoseconds.
        error: what a caller suffered; None: the answer is not affected.
        links: spans of other traces that this one is about.
    """

    name: str
    context: TraceContext
    parent: TraceContext | None
    begun_ns: int
    ended_ns: int = 0
    kind: Kind = Kind.INTERNAL
    attributes: dict[str, Value] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    notes_dropped: int = 0
    error: str | None = None
    links: tuple[TraceContext, ...] = ()

    def note(self, note: Note) -> None:
        """Add an event, or count it when there are too many."""
        if len(self.notes) >= NOTES_MAX:
            self.notes_dropped += 1
        else:
            self.notes.append(note)
