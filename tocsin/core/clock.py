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


class OffsetClock:
    """A clock whose wall time can be moved away from that of the clock below, for faults alone.

    Monotonic time is passed on as it is: nothing that waits by it can tell.

    Attributes:
        rate: seconds of wall time a second.
    """

    def __init__(self, below: Clock) -> None:
        """It says what the one below says."""
        self._below = below
        self.rate = 1.0
        self._offset_s = 0.0
        self._since_ns = 0

    @property
    def real(self) -> bool:
        """The clock below is the machine's."""
        return is_real(self._below)

    def now_ns(self) -> int:
        """As below."""
        return self._below.now_ns()

    def wall_s(self) -> float:
        """As below, and by how far it was moved."""
        return self._below.wall_s() + self.offset_s()

    def sleep(self, seconds: float) -> None:
        """As below."""
        self._below.sleep(seconds)

    def offset_s(self) -> float:
        """Seconds by which it is ahead of the clock below."""
        if self.rate == 1.0:
            return self._offset_s
        ran_s = (self._below.now_ns() - self._since_ns) / 1e9
        return self._offset_s + (self.rate - 1.0) * ran_s

    def move(self, seconds: float) -> None:
        """Set it forward, or back."""
        self._offset_s += seconds

    def run_at(self, rate: float) -> None:
        """Let it run at another rate from now on; it does not jump."""
        self._offset_s = self.offset_s()
        self._since_ns = self._below.now_ns()
        self.rate = rate

    def settle(self) -> None:
        """Let it say again what the one below says."""
        self._offset_s = 0.0
        self._since_ns = self._below.now_ns()


def is_real(clock: Clock) -> bool:
    """Whether a clock goes with the machine's: who waits by it waits in earnest."""
    return isinstance(clock, SystemClock) or bool(getattr(clock, "real", False))
