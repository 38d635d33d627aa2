"""Whether what a process holds grows with the requests that it served.

Source: slope by Theil and Sen (median of all pairs), significance by Mann and Kendall: both take
no notice of single high readings, which a fault or a collector leaves.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

from tocsin.chaos.soak.document import Trend, Window

WINDOWS_LEAST = 6
_WARM_SHARE = 0.25
_SURE = 2.33
"""Standard deviations of Mann and Kendall's S: one-sided 1 %."""
_MIB = 2.0**20


@dataclass(frozen=True, slots=True)
class Reading:
    """What is watched, and the growth over a soak that is let pass: so much, or a share if more."""

    key: str
    allowed: float
    share: float


READINGS = (
    Reading("rss_bytes", 64 * _MIB, 0.10),
    Reading("shm_bytes", 32 * _MIB, 0.0),
    Reading("fds", 16, 0.0),
    Reading("threads", 16, 0.0),
)


def trends(windows: Sequence[Window]) -> tuple[Trend, ...]:
    """One for each reading of each process that was there at the end."""
    last = windows[-1].processes if windows else {}
    found = []
    for process in last:
        for reading in READINGS:
            points = _points(windows, process, reading.key)
            if points:
                found.append(_trend(process, reading, points))
    return tuple(found)


def _points(windows: Sequence[Window], process: str, key: str) -> list[tuple[float, float]]:
    """Requests served by then, and the reading; a first share of the windows warms caches up."""
    points, served = [], 0
    for window in windows:
        served += window.requests
        value = window.processes.get(process, {}).get(key)
        if value is not None:
            points.append((float(served), float(value)))
    return points[math.ceil(_WARM_SHARE * len(points)) :]


def _trend(process: str, reading: Reading, points: Sequence[tuple[float, float]]) -> Trend:
    values = [value for _, value in points]
    edge = max(1, len(values) // 3)
    first, last = median(values[:edge]), median(values[-edge:])
    slope = median(
        [(b - a) / (q - p) for (p, a), (q, b) in combinations(points, 2) if q > p] or [0.0]
    )
    grown, allowed = last - first, max(reading.allowed, reading.share * first)
    verdict, why = "steady", ""
    if len(values) < WINDOWS_LEAST:
        verdict = "unknown"
        why = f"{len(values)} windows after the warm ones, expected {WINDOWS_LEAST} or more"
    elif grown > allowed and _rises(values):
        verdict = "leak"
        why = f"grew by {grown:.3g} from {first:.3g}, allowed are {allowed:.3g}"
    return Trend(
        process=process,
        reading=reading.key,
        windows=len(values),
        first=first,
        last=last,
        per_1000=1000.0 * slope,
        verdict=verdict,  # type: ignore[arg-type]
        why=why,
    )


def _rises(values: Sequence[float]) -> bool:
    """Whether the values rise beyond what chance explains (Mann-Kendall, no ties)."""
    n = len(values)
    s = sum((b > a) - (b < a) for a, b in combinations(values, 2))
    deviation = math.sqrt(n * (n - 1) * (2 * n + 5) / 18.0)
    return s - 1 > _SURE * deviation
