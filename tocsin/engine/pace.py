"""The pace of decode steps against their own past, and the wall clock against the monotonic one."""

import os
import statistics
import threading
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from tocsin.core.clock import Clock

SLOW_RATIO = 3.0
"""A decode step that takes so many times the usual one is slow."""
_SLOW_STEPS, _OF_STEPS = 5, 8
_USUAL_MIN, _USUAL_MAX = 8, 64
_NEW_PACE_STEPS = 256
_FLOOR_S = 0.005
_CLOCK_LIMIT_S = 0.5
_CLOCK_AGAIN_NS = 60_000_000_000
_CLOCK_READ_NS = 5_000_000
_CLOCK_TOLD_NS = 10_000_000_000
"""One that runs away is told of so often, and each time how far it has come."""


@dataclass(slots=True)
class Pace:
    """Whether a replica has become a straggler by its own measure.

    What it is compared with is its own recent past: a slow machine is no straggler, one that was
    faster a moment ago is. One slow step says nothing; five of the last eight do.

    Attributes:
        straggling: it is slow now; usual_s: the median of steps that were not.
    """

    straggling: bool = False
    usual_s: float = 0.0
    _usual: deque[float] = field(default_factory=lambda: deque(maxlen=_USUAL_MAX))
    _slow: deque[bool] = field(default_factory=lambda: deque(maxlen=_OF_STEPS))
    _taken: int = 0
    _slow_running: int = 0

    def took(self, seconds: float) -> bool:
        """Take one decode step; whether `straggling` has changed with it."""
        if len(self._usual) < _USUAL_MIN:
            self._keep(seconds)
            return False
        slow = seconds > max(SLOW_RATIO * self.usual_s, _FLOOR_S)
        self._slow.append(slow)
        self._slow_running = self._slow_running + 1 if slow else 0
        if not slow:
            self._keep(seconds)
        elif self._slow_running >= _NEW_PACE_STEPS:  # no straggler any more: it is slower for good
            self._usual.clear()
            self._slow.clear()
        before = self.straggling
        if sum(self._slow) >= _SLOW_STEPS:
            self.straggling = True
        elif not any(self._slow):
            self.straggling = False
        return self.straggling != before

    def _keep(self, seconds: float) -> None:
        """Sorting a few numbers is cheap, and still need not be done in every step."""
        self._usual.append(seconds)
        self._taken += 1
        if len(self._usual) <= _USUAL_MIN or self._taken % _USUAL_MIN == 0:
            self.usual_s = statistics.median(self._usual)


class Stopwatch:
    """How long the calling thread takes for something, less the time for which it had no CPU.

    On a busy machine a step waits for its turn: that is the machine's affair, and no sign that
    the step itself has become slow. Linux counts it for each thread (proc(5), schedstat).
    """

    def __init__(self, clock: Clock, *, real: bool) -> None:
        """Nothing is timed yet.

        Args:
            real: the clock is the machine's; in tests and simulation nobody waits for a CPU.
        """
        self._clock, self._real = clock, real
        self._thread, self._file = 0, -1
        self._began_ns = self._waited_ns = 0

    def start(self) -> None:
        """From here on."""
        self._waited_ns = self._wait_ns()
        self._began_ns = self._clock.now_ns()

    def stop_s(self) -> float:
        """Seconds since `start` in which this thread ran or stood still by itself."""
        took_ns = self._clock.now_ns() - self._began_ns
        return max(0, took_ns - (self._wait_ns() - self._waited_ns)) / 1e9

    def _wait_ns(self) -> int:
        """For how long this thread has ever waited for a CPU; 0 where nobody counts that."""
        if not self._real:
            return 0
        thread = threading.get_native_id()
        try:
            if thread != self._thread:
                self._close()
                self._thread = thread
                path = Path(f"/proc/self/task/{thread}/schedstat")
                self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            return int(os.pread(self._file, 96, 0).split()[1]) if self._file >= 0 else 0
        except (OSError, IndexError, ValueError):
            self._close()
            return 0

    def _close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def __del__(self) -> None:
        """The file goes with it."""
        if getattr(self, "_file", -1) >= 0:
            self._close()


@dataclass(slots=True)
class ClockWatch:
    """Notices when the wall clock goes otherwise than the monotonic one; both are only read.

    Nothing here waits by the wall clock; but records, certificates and whoever compares two
    machines go by it. An NTP daemon slews by 0.03 s in the minute after which the two are compared
    anew, at most.
    """

    clock: Clock
    _differs_s: float | None = None
    _since_ns: int = 0
    _told_ns: int = -_CLOCK_TOLD_NS

    def moved_s(self) -> float:
        """By how much the wall clock has moved of itself; 0 when it has not, or not noticeably."""
        before_ns = self.clock.now_ns()
        wall_s = self.clock.wall_s()
        after_ns = self.clock.now_ns()
        if after_ns - before_ns > _CLOCK_READ_NS:
            return 0.0  # interrupted between the two readings
        differs_s = wall_s - before_ns / 1e9
        if self._differs_s is None:
            self._differs_s, self._since_ns = differs_s, before_ns
            return 0.0
        moved_s = differs_s - self._differs_s
        if abs(moved_s) <= _CLOCK_LIMIT_S:
            if before_ns - self._since_ns >= _CLOCK_AGAIN_NS:
                self._differs_s, self._since_ns = differs_s, before_ns
            return 0.0
        if before_ns - self._told_ns < _CLOCK_TOLD_NS:
            return 0.0
        self._differs_s, self._since_ns, self._told_ns = differs_s, before_ns, before_ns
        return moved_s
