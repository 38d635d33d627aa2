"""Numbers and times as people read them."""

import datetime

from tocsin.dashboards.panel import Unit

NONE = "–"
_STEPS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def count(value: float) -> str:
    """Three digits and a letter: `12.4k`."""
    for step, letter in _STEPS:
        if abs(value) >= step:
            return f"{_three(value / step)}{letter}"
    return _three(value)


def amount(value: float | None, unit: Unit) -> str:
    """A value with its unit."""
    if value is None:
        return NONE
    match unit:
        case Unit.RATIO:
            return f"{_three(100 * value)} %"
        case Unit.SECONDS:
            return seconds(value)
        case Unit.PER_SECOND | Unit.REQUESTS_PER_SECOND:
            return f"{count(value)}/s"
        case Unit.BYTES:
            return f"{count(value)}B"
        case _:
            return count(value)


def seconds(value: float) -> str:
    """A duration in the largest unit that leaves a whole number before the point."""
    if value < 0:
        return f"-{seconds(-value)}"
    if value < 0.9995:
        return f"{_three(1000 * value)} ms"
    if value < 120:
        return f"{_three(value)} s"
    if value < 7200:
        return f"{value / 60:.0f} min"
    return f"{value / 3600:.1f} h"


def countdown(value: float) -> str:
    """What is left, to the second: `4:59`."""
    whole = max(int(value + 0.999), 0)
    hours, rest = divmod(whole, 3600)
    minutes, seconds_ = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{seconds_:02}" if hours else f"{minutes}:{seconds_:02}"


def clock(wall_s: float) -> str:
    """Time of day, UTC."""
    return datetime.datetime.fromtimestamp(wall_s, tz=datetime.UTC).strftime("%H:%M:%S")


def stamp(wall_s: float) -> str:
    """Date and time, UTC, for machines."""
    utc = datetime.datetime.fromtimestamp(wall_s, tz=datetime.UTC)
    return utc.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _three(value: float) -> str:
    """At most three significant digits, without an exponent."""
    if value == 0:
        return "0"
    size = abs(value)
    if size < 0.005:
        return "<0.01"
    return f"{round(value, 0 if size >= 100 else 1 if size >= 10 else 2):g}"
