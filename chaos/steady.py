"""Steady state as clients see it: good windows after a heal, and the probes of the phases."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tocsin.chaos.case import Case
from tocsin.chaos.spec import ProbeSpec
from tocsin.core.history import Outcome, RequestRecord

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Timeline:
    """Sorted monotonic times, ns: tokens that arrived, requests begun and ended, bad ends."""

    tokens: IntArray
    begins: IntArray
    ends: IntArray
    bad: IntArray

    @classmethod
    def of(cls, records: Iterable[RequestRecord]) -> "Timeline":
        """The timeline of the honest requests."""
        honest = [record for record in records if not record.malformed]
        return cls(
            tokens=_sorted(chunk.t_ns for record in honest for chunk in record.chunks),
            begins=_sorted(record.t_invoke_ns for record in honest),
            ends=_sorted(record.t_end_ns for record in honest if record.t_end_ns),
            bad=_sorted(
                record.t_end_ns
                for record in honest
                if record.t_end_ns and record.outcome in (Outcome.FAIL, Outcome.INFO)
            ),
        )

    def window(self, start_ns: int, end_ns: int) -> bool | None:
        """Whether service was good in [start, end): tokens flowed and no request ended badly.

        Returns:
            None when nobody wanted anything: no data.
        """
        if _count(self.bad, start_ns, end_ns):
            return False
        if _count(self.tokens, start_ns, end_ns):
            return True
        begun = int(np.searchsorted(self.begins, end_ns))
        ended = int(np.searchsorted(self.ends, start_ns))
        return False if begun > ended else None


def recovered_after_s(
    timeline: Timeline, healed_ns: int, end_ns: int, window_s: float, good_windows: int
) -> float | None:
    """Seconds from a heal to the first of several good windows in a row; None: there were none.

    Windows without data neither count nor break the row.
    """
    width_ns = max(1, int(window_s * 1e9))
    row = begun = 0
    for i in range(max(0, (end_ns - healed_ns) // width_ns)):
        good = timeline.window(healed_ns + i * width_ns, healed_ns + (i + 1) * width_ns)
        if good is None:
            continue
        if not good:
            row = 0
            continue
        begun = i if row == 0 else begun
        row += 1
        if row == good_windows:
            return begun * window_s
    return None


def probe_readings(case: Case, phase: str) -> list[tuple[ProbeSpec, float | None]]:
    """Readings of the steady-state probes.

    Args:
        phase: `before` the first fault, or `after` the last heal.

    Returns:
        Each probe with its reading; None: no data.
    """
    if phase == "before":
        start_ns, end_ns = case.t_start_ns, case.t_faults_ns or case.t_end_ns
        records = [*case.warmup, *_ended(case.records, start_ns, end_ns)]
    else:
        records = _ended(case.records, case.t_healed_ns or case.t_start_ns, case.t_end_ns)
    return [(probe, reading(records, probe.metric)) for probe in case.spec.steady_state.probes]


def reading(records: Sequence[RequestRecord], metric: str) -> float | None:
    """A client-side metric: `ok_ratio`, `ttft_ms_p99` or `itl_ms_p99`; None: no data."""
    if metric == "ok_ratio":
        return availability(records)
    honest = [record for record in records if not record.malformed]
    if metric == "ttft_ms_p99":
        values = [(r.t_first_ns - r.t_invoke_ns) / 1e6 for r in honest if r.t_first_ns]
    else:
        values = [
            (after.t_ns - before.t_ns) / 1e6
            for record in honest
            for before, after in zip(record.chunks, record.chunks[1:], strict=False)
        ]
    return percentile(values, 0.99)


def availability(records: Iterable[RequestRecord]) -> float | None:
    """Answered / all honest requests that were not cancelled; None without any."""
    asked = [r for r in records if not r.malformed and r.outcome is not Outcome.CANCELLED]
    if not asked:
        return None
    return sum(record.outcome is Outcome.OK for record in asked) / len(asked)


def percentile(values: Sequence[float], quantile: float) -> float | None:
    """The nearest-rank percentile: always a value that was measured; None without any."""
    if not values:
        return None
    return float(sorted(values)[max(0, math.ceil(quantile * len(values)) - 1)])


def _ended(records: Iterable[RequestRecord], start_ns: int, end_ns: int) -> list[RequestRecord]:
    return [record for record in records if start_ns <= record.t_end_ns <= end_ns]


def _sorted(times: Iterable[int]) -> IntArray:
    return np.sort(np.fromiter(times, dtype=np.int64))


def _count(times: IntArray, start_ns: int, end_ns: int) -> int:
    return int(np.searchsorted(times, end_ns) - np.searchsorted(times, start_ns))
