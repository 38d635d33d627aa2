"""Axes: from seconds and milliseconds to pixels, and the round numbers to write beside them."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Axis:
    """Maps [low, high] to [start, end] pixels, linearly or by logarithm."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        """Pixel of a value; values outside are drawn at the edge."""
        share = (self._of(value) - self._of(self.low)) / (self._of(self.high) - self._of(self.low))
        return self.start + min(1.0, max(0.0, share)) * (self.end - self.start)

    def optional(self, value: float | None) -> float | None:
        """Pixel of a value, None for None."""
        return None if value is None else self(value)

    @property
    def note(self) -> str:
        """What to write beside the unit."""
        return ", log scale" if self.logarithmic else ""

    def _of(self, value: float) -> float:
        return math.log10(max(value, self.low)) if self.logarithmic else value


def time_axis(end_s: float, start: float, end: float) -> Axis:
    """The axis from 0 to the end of the run."""
    return Axis(0.0, max(end_s, 1e-3), start, end)


def value_axis(values: list[float], start: float, end: float) -> Axis:
    """An axis for values ≥ 0; logarithmic when the largest would flatten all the others."""
    positive = sorted(value for value in values if value > 0)
    if not positive:
        return Axis(0.0, 1.0, start, end)
    middle, largest = positive[len(positive) // 2], positive[-1]
    if largest > 12 * middle:
        low = 10 ** math.floor(math.log10(positive[0]))
        return Axis(low, 10 ** math.ceil(math.log10(largest * 1.01)), start, end, True)
    step = round_step(largest, 3)
    return Axis(0.0, math.ceil(largest * 1.02 / step) * step, start, end)


def round_step(length: float, pieces: int) -> float:
    """The smallest of 1, 2, 5 × 10ⁿ that cuts the length into at most that many pieces."""
    rough = max(length, 1e-9) / pieces
    magnitude = 10 ** math.floor(math.log10(rough))
    return float(next(magnitude * k for k in (1, 2, 5, 10) if magnitude * k >= rough * (1 - 1e-9)))


def ticks(axis: Axis, pieces: int) -> list[float]:
    """Round values to write at the axis, from its low end to its high end."""
    if axis.logarithmic:
        first, last = round(math.log10(axis.low)), round(math.log10(axis.high))
        every = max(1, math.ceil((last - first) / pieces))
        return [10.0**power for power in range(first, last + 1, every)]
    step = round_step(axis.high - axis.low, pieces)
    return [k * step for k in range(int(axis.high / step + 1e-9) + 1) if k * step >= axis.low]


def time_step(end_s: float, pieces: int) -> float:
    """Seconds between two marks of a time axis: 1, 2, 5, 10, 15, 30 s, 1, 2, 5 min …"""
    rough = end_s / pieces
    steps = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 86400)
    if rough < 1:
        return round_step(end_s, pieces)
    return next((float(step) for step in steps if step >= rough), round_step(end_s, pieces))


def seconds_text(t_s: float) -> str:
    """A time on the axis: `0.5 s`, `45 s`, `2:05`, `1:02:05`."""
    if t_s >= 3600:
        return f"{int(t_s) // 3600}:{int(t_s) // 60 % 60:02d}:{int(t_s) % 60:02d}"
    if t_s >= 120:
        return f"{int(t_s) // 60}:{int(t_s) % 60:02d}"
    return f"{t_s:g} s" if t_s == round(t_s) or t_s < 10 else f"{t_s:.1f} s"


def amount_text(value: float) -> str:
    """A short number: three significant figures, thousands as k and M."""
    for limit, unit in ((1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1e6 if unit == 'M' else 1e3):.3g}{unit}"
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}"
