"""What the relay asks of those who have the journal: a reproduction, and the facts of a failure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Reproduction:
    """A failure that can be seen again.

    Attributes:
        command: what to type.
        path: the file that was written.
    """

    command: str
    path: Path


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of one failure.

    Attributes:
        record: the journal's line.
        call: the snapshot's description: operator, shapes, thresholds, ratio; no tensor.
        snapshot: folder of the snapshot, None where there is none.
        spans: of the trace that the failure happened in.
        environment: versions and machine.
    """

    failure_id: str
    record: Mapping[str, Any] = field(default_factory=dict)
    call: Mapping[str, Any] = field(default_factory=dict)
    snapshot: Path | None = None
    spans: Sequence[Mapping[str, Any]] = ()
    environment: Mapping[str, Any] = field(default_factory=dict)


Reproduce = Callable[[str, float], Reproduction | None]
"""From a failure id or `latest:<operator>`, and since when (seconds since the epoch) the latest may
be: an older one belongs to another incident. None where nothing was recorded. May take its time."""
FindEvidence = Callable[[str, float], Evidence | None]
"""The same for the facts."""
