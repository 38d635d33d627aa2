"""Failures of all replicas on one time line: the worst minute of each operator, and crossings."""

from bisect import bisect_right, insort
from collections.abc import Iterable
from dataclasses import dataclass, field

from tocsin.checker.window import HOLD_S, LIMIT, worst_window
from tocsin.ray_jobs.ticks import Tick

_KEPT_MAX = 8192
_AGAIN_S = 300.0
"""A crossing that lasts is told again: an order given for the first one has its time limit."""


@dataclass(slots=True)
class _Line:
    """Ticks of one operator.

    Attributes:
        last: the highest serial number taken from each source.
        told_s: when the crossing that holds was told, None while there is none.
    """

    times_s: list[float] = field(default_factory=list)
    last: dict[str, int] = field(default_factory=dict)
    told_s: float | None = None


class FleetWindow:
    """The window of a node or of the fleet, from the ticks that each process wrote itself.

    Times are wall time: windows of several nodes are as exact as their clocks agree.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        """Nothing has failed yet."""
        self._limit = limit
        self._lines: dict[tuple[str, str], _Line] = {}

    def take(self, ticks: Iterable[Tick], now_s: float) -> list[tuple[str, str]]:
        """Take ticks in; one that was taken already is known by its serial number.

        Returns:
            Model and operator of each crossing that they make.
        """
        touched = set()
        for tick in ticks:
            key = (tick.model, tick.operator)
            line = self._lines.setdefault(key, _Line())
            if tick.serial <= line.last.get(tick.source, -1):
                continue
            line.last[tick.source] = tick.serial
            insort(line.times_s, tick.wall_s)
            touched.add(key)
        crossings = []
        for key in sorted(touched):
            line = self._lines[key]
            del line.times_s[:-_KEPT_MAX]
            if worst_window(line.times_s, now_s) <= self._limit:
                line.told_s = None
            elif line.told_s is None or now_s - line.told_s > _AGAIN_S:
                line.told_s = now_s
                crossings.append(key)
        return crossings

    def worst(self, now_s: float) -> dict[tuple[str, str], int]:
        """The worst minute of the last two, by model and operator; 0 where it is long ago."""
        found = {}
        for key, line in self._lines.items():
            del line.times_s[: bisect_right(line.times_s, now_s - HOLD_S)]
            found[key] = worst_window(line.times_s, now_s)
            if found[key] <= self._limit:
                line.told_s = None
        return found
