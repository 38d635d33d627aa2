"""The one interface of every adapter: a step around the work, one verdict, and a way back."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

from tocsin.checker.counters import Counters
from tocsin.checker.runtime import Runtime
from tocsin.core.seams import Seams
from tocsin.core.verdict import Verdict


class CheckedStep(Protocol):
    """What a step under checks leaves behind."""

    @property
    def verdict(self) -> Verdict:
        """What the checks found; the one device-to-host read happens at the first access."""


@runtime_checkable
class FaultChecker(Protocol):
    """Checks attached to something that computes: a model, or plain operators.

    Attributes:
        seams: where the operator calls are announced; faults may listen there too.
        runtime: the checks that run.
    """

    seams: Seams
    runtime: Runtime

    @property
    def counters(self) -> Counters:
        """What the checks did so far."""

    @property
    def skipped(self) -> Mapping[str, str]:
        """What could not be looked at → the reason; never silently."""

    def step(self) -> AbstractContextManager[CheckedStep]:
        """A context around one piece of work."""

    def status(self) -> dict[str, Any]:
        """JSON-safe: switchboard, the checks that listen, what was skipped."""

    def detach(self) -> None:
        """Stop listening; calling it again does nothing."""
