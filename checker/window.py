"""The P0 window: exactly how often an operator failed within any minute, counted in process.

A window is half open, (t - span, t]: two failures a whole span apart are never in one window.
"""

from collections import deque
from collections.abc import Sequence

from tocsin.core.clock import Clock

SPAN_S = 60.0
LIMIT = 10
HOLD_S = 120.0
"""The worst window of the last two minutes is shown: no scrape up to a minute apart misses it."""


class FailureWindow:
    """Failures of each operator within the last minute, one tick a failure.

    Args:
        clock: monotonic time.
        limit: failures in one span that are still borne; one more is a crossing.
    """

    def __init__(self, clock: Clock, span_s: float = SPAN_S, limit: int = LIMIT) -> None:
        """No operator has failed yet."""
        self.limit = limit
        self._clock = clock
        self._span_ns = int(span_s * 1e9)
        # One more than the limit is all that a crossing needs: a storm takes no memory.
        self._ticks: dict[str, deque[int]] = {}
        self._crossed: set[str] = set()

    def tick(self, operator: str) -> bool:
        """Count a failure; True at the one that crosses the limit.

        The next crossing is told once the count was back within the limit.
        """
        now_ns = self._clock.now_ns()
        ticks = self._ticks.get(operator)
        if ticks is None:
            ticks = self._ticks[operator] = deque(maxlen=self.limit + 1)
        self._forget(ticks, now_ns)
        if len(ticks) <= self.limit:
            self._crossed.discard(operator)
        ticks.append(now_ns)
        if len(ticks) <= self.limit or operator in self._crossed:
            return False
        self._crossed.add(operator)
        return True

    def over(self, operator: str) -> bool:
        """Whether the limit is crossed now."""
        ticks = self._ticks.get(operator)
        if ticks is None:
            return False
        self._forget(ticks, self._clock.now_ns())
        return len(ticks) > self.limit

    def _forget(self, ticks: deque[int], now_ns: int) -> None:
        while ticks and ticks[0] <= now_ns - self._span_ns:
            ticks.popleft()


def worst_window(
    times_s: Sequence[float], now_s: float, span_s: float = SPAN_S, hold_s: float = HOLD_S
) -> int:
    """The largest number of ticks in any window of `span_s` that lies in the last `hold_s`.

    Args:
        times_s: of the ticks, in ascending order, of one clock.
    """
    worst, first = 0, 0
    recent = [time_s for time_s in times_s if now_s - hold_s < time_s]
    for last, time_s in enumerate(recent):
        while recent[first] <= time_s - span_s:
            first += 1
        worst = max(worst, last - first + 1)
    return worst
