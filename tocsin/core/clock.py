"""Time as a dependency: real time in production, hand-turned time in tests and simulation."""

import time
from dataclasses import dataclass
from typing import Protocol


class Clock(Protocol):
    """Where time comes from."""

    def now_ns(self) -> int:
        """Monotonic nanoseconds, comparable between processes of one machine."""
        ...

    def wall_s(self) -> float:
        """Seconds since the epoch; only for people to read, never for deadlines."""
        ...

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def now_ns(self) -> int:
        """Nanoseconds of CLOCK_MONOTONIC, one clock for all processes of a Linux machine."""
        return time.monotonic_ns()

    def wall_s(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """Block the calling thread."""
        time.sleep(seconds)


@dataclass(slots=True)
class ManualClock:
    """A clock that moves only when told to."""

    ns: int = 0

    def now_ns(self) -> int:
        """The time it was set to."""
        return self.ns

    def wall_s(self) -> float:
        """The same, in seconds."""
        return self.ns / 1e9

    def sleep(self, seconds: float) -> None:
        """Advance by `seconds` at once."""
        self.ns += int(seconds * 1e9)
