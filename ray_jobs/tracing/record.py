"""A span while nobody knows yet whether it is kept: plain data, a microsecond to write.

Of a hundred requests ninety-nine are dropped. Only those that are kept become OpenTelemetry spans
(`assemble`), on another thread and with the ids and times that were noted here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tocsin.ray_jobs.tracing import names
from tocsin.ray_jobs.tracing.context import TraceContext

Value = str | bool | int | float | tuple[str, ...]

NOTES_MAX = 32
"""Events of one span; the others are counted."""
ALIKE_MAX = 4
"""Events of one span that tell the same of the same check: in a storm the first ones tell it."""


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
class Notes:
    """The events of a span, or of some: bounded, and what is too much is counted.

    Attributes:
        spans: how many share them.
    """

    spans: int = 1
    kept: list[Note] = field(default_factory=list)
    dropped: int = 0
    _alike: dict[tuple[str, Value | None], int] = field(default_factory=dict)

    def add(self, note: Note) -> None:
        """Keep an event, or count it."""
        key = note.name, note.attributes.get(names.CHECK_NAME)
        alike = self._alike.get(key, 0)
        if alike >= ALIKE_MAX * self.spans or len(self.kept) >= NOTES_MAX * self.spans:
            self.dropped += 1
            return
        self._alike[key] = alike + 1
        self.kept.append(note)


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
    notes: Notes = field(default_factory=Notes)
    error: str | None = None
    links: tuple[TraceContext, ...] = ()
