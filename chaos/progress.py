"""What a run tells while it runs; who draws it is somebody else's affair."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tocsin.chaos.verdict import RunVerdict


@dataclass(frozen=True, slots=True)
class ProgressState:
    """A reading of a run under way.

    Attributes:
        phase: `set-up`, `golden`, `warm-up`, `faults`, `drain`, `heal`, `judge` or `report`.
        active: what is being injected, in words: `kv.bitflip on replica-1`.
        left_s: rough time to the end; None: not known yet.
    """

    phase: str
    requests_done: int = 0
    requests_total: int = 0
    tokens: int = 0
    ok: int = 0
    failed: int = 0
    occurrences_done: int = 0
    occurrences_total: int = 0
    active: tuple[str, ...] = ()
    detections: int = 0
    last_detection: str = ""
    elapsed_s: float = 0.0
    left_s: float | None = None


class Progress(Protocol):
    """Hears of a run; must not block."""

    def update(self, state: ProgressState) -> None:
        """A new reading, several a second."""
        ...

    def note(self, text: str) -> None:
        """One line that a person should see."""
        ...

    def end(self, verdict: RunVerdict, run_dir: Path, lines: tuple[str, ...]) -> None:
        """The run is over and its files are written."""
        ...


class Quiet:
    """Hears everything and says nothing."""

    def update(self, state: ProgressState) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""

    def end(self, verdict: RunVerdict, run_dir: Path, lines: tuple[str, ...]) -> None:
        """Nothing."""
