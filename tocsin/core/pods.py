"""Pods as a fault on pods sees them: Kubernetes in earnest, a table in tests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod as last read.

    Attributes:
        uid: tells it apart from a later pod of the same name.
        node: name of the machine, empty while it waits for one.
        ip: its address, empty while it has none.
        ready: its probes say that it serves.
        terminating: somebody has deleted it, and it is about to go.
    """

    name: str
    uid: str
    node: str = ""
    ip: str = ""
    phase: str = ""
    ready: bool = False
    terminating: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """How a person reads its state."""
        state = "terminating" if self.terminating else self.phase.lower() or "unknown"
        return f"uid {self.uid} {state}"


class Pods(Protocol):
    """The worker pods of one release."""

    def all(self) -> Sequence[Pod]:
        """Every worker pod of the release, by name.

        Raises:
            TocsinError: they cannot be read.
        """
        ...

    def get(self, name: str) -> Pod | None:
        """One pod, None when there is none of this name.

        Raises:
            TocsinError: it cannot be read.
        """
        ...

    def delete(self, pod: Pod, grace_s: int | None) -> None:
        """Delete this very pod, not a later one of its name.

        Args:
            grace_s: time to end by itself; None: what the pod says.

        Raises:
            ChaosForbidden: it must not be deleted.
            TocsinError: it cannot be deleted.
        """
        ...
