"""What a chaos run tells to whoever counts: faults as they come and go, and how soon seen."""

from typing import Protocol


class ChaosMeter(Protocol):
    """Hears of a run while it lasts; never blocks and never raises."""

    def running(self, on: bool) -> None:
        """An experiment begins or has ended."""
        ...

    def active(self, fault: str, count: int) -> None:
        """So many faults of this kind are in place now."""
        ...

    def injected(self, fault: str) -> None:
        """A fault has left evidence that it fired."""
        ...

    def detected(self, fault: str, seconds: float) -> None:
        """A detector that is meant to see it has alarmed, so long after the injection."""
        ...

    def healed(self, fault: str) -> None:
        """A fault was shown to be gone."""
        ...

    def false_alarms(self, count: int) -> None:
        """So many alarms of the run belong to no fault."""
        ...


class Unmetered:
    """Nobody counts."""

    def running(self, on: bool) -> None:
        """Nothing."""

    def active(self, fault: str, count: int) -> None:
        """Nothing."""

    def injected(self, fault: str) -> None:
        """Nothing."""

    def detected(self, fault: str, seconds: float) -> None:
        """Nothing."""

    def healed(self, fault: str) -> None:
        """Nothing."""

    def false_alarms(self, count: int) -> None:
        """Nothing."""
