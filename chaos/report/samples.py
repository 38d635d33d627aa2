"""What clients measured, as arrays: one pass over the records feeds curves and phases."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tocsin.chaos.report.bins import (
    FloatArray,
    counts_by_bin,
    percentiles_by_bin,
    quantile_of,
)
from tocsin.chaos.report.model import PhaseRow, Series, Span
from tocsin.core.history import Outcome, RequestRecord

NO_ANSWER = (Outcome.FAIL, Outcome.INFO, Outcome.OPEN)
_BINS_MOST, _BINS_LEAST, _TOKENS_PER_BIN = 120, 16, 12


@dataclass(frozen=True, slots=True)
class Samples:
    """Times in seconds since the run began, durations in milliseconds.

    Attributes:
        first_s, first_ms: arrival of each first token, and the wait for it.
        gap_s, gap_ms: arrival of each later token, and the time since the one before.
        token_s: arrival of every token.
        failed_s: end of every honest request that got no answer.
    """

    first_s: FloatArray
    first_ms: FloatArray
    gap_s: FloatArray
    gap_ms: FloatArray
    token_s: FloatArray
    failed_s: FloatArray


def samples_of(records: Iterable[RequestRecord], origin_ns: int) -> Samples:
    """Everything that the records measure; tokens of malformed requests are not left out."""
    first: list[tuple[int, int]] = []
    gaps: list[tuple[int, int]] = []
    tokens: list[int] = []
    failed: list[int] = []
    for record in records:
        times = [chunk.t_ns for chunk in record.chunks]
        tokens.extend(times)
        gaps.extend((after, after - before) for before, after in pairwise(times))
        arrival = record.t_first_ns or (times[0] if times else 0)
        if arrival:
            first.append((arrival, arrival - record.t_invoke_ns))
        if record.outcome in NO_ANSWER and not record.malformed:
            failed.append(record.t_end_ns or record.t_invoke_ns)
    first_s, first_ms = _columns(first, origin_ns)
    gap_s, gap_ms = _columns(gaps, origin_ns)
    return Samples(
        first_s, first_ms, gap_s, gap_ms, _seconds(tokens, origin_ns), _seconds(failed, origin_ns)
    )


def series_of(samples: Samples, end_s: float) -> Series:
    """The samples in bins of one width; fewer bins when there is little to put into them."""
    wanted = min(len(samples.token_s) // _TOKENS_PER_BIN, len(samples.first_s) * 2 // 3)
    bin_count = min(_BINS_MOST, max(_BINS_LEAST, wanted))
    edges_s = np.linspace(0.0, max(end_s, 1e-3), bin_count + 1)
    ttft = percentiles_by_bin(samples.first_s, samples.first_ms, edges_s, (0.5, 0.99))
    gap = percentiles_by_bin(samples.gap_s, samples.gap_ms, edges_s, (0.5, 0.99))
    width_s = float(edges_s[1] - edges_s[0])
    rates = [count / width_s for count in counts_by_bin(samples.token_s, edges_s)]
    return Series(
        edges_s=tuple(round(float(edge), 3) for edge in edges_s),
        ttft_p50_ms=_rounded(ttft[0]),
        ttft_p99_ms=_rounded(ttft[1]),
        gap_p50_ms=_rounded(gap[0]),
        gap_p99_ms=_rounded(gap[1]),
        tokens_per_s=_rounded(list(rates) if len(samples.token_s) else [None] * bin_count),
        failures=tuple(counts_by_bin(samples.failed_s, edges_s)),
    )


def phases_of(
    records: Sequence[RequestRecord], samples: Samples, phases: Sequence[Span], origin_ns: int
) -> tuple[PhaseRow, ...]:
    """One row a phase; a request belongs to the phase in which it was sent."""
    return tuple(_phase(records, samples, phase, origin_ns) for phase in phases) if records else ()


def _phase(
    records: Sequence[RequestRecord], samples: Samples, phase: Span, origin_ns: int
) -> PhaseRow:
    sent = [
        record
        for record in records
        if phase.start_s <= (record.t_invoke_ns - origin_ns) / 1e9 < phase.end_s
        and not record.malformed
    ]
    first = samples.first_ms[_inside(samples.first_s, phase)]
    gap = samples.gap_ms[_inside(samples.gap_s, phase)]
    length_s = phase.end_s - phase.start_s
    tokens = int(np.count_nonzero(_inside(samples.token_s, phase)))
    return PhaseRow(
        name=phase.state,
        start_s=phase.start_s,
        end_s=phase.end_s,
        requests=len(sent),
        ok=sum(record.outcome is Outcome.OK for record in sent),
        failed=sum(record.outcome in NO_ANSWER for record in sent),
        degraded=sum(bool(record.degraded) for record in sent),
        ttft_p50_ms=quantile_of(first, 0.5),
        ttft_p99_ms=quantile_of(first, 0.99),
        gap_p50_ms=quantile_of(gap, 0.5),
        gap_p99_ms=quantile_of(gap, 0.99),
        tokens_per_s=tokens / length_s if length_s > 0 and len(samples.token_s) else None,
    )


def _inside(t_s: FloatArray, phase: Span) -> "np.typing.NDArray[np.bool_]":
    return (t_s >= phase.start_s) & (t_s < phase.end_s)


def _columns(pairs: list[tuple[int, int]], origin_ns: int) -> tuple[FloatArray, FloatArray]:
    table = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return (table[:, 0] - origin_ns) / 1e9, table[:, 1] / 1e6


def _seconds(times_ns: list[int], origin_ns: int) -> FloatArray:
    return (np.array(times_ns, dtype=np.int64) - origin_ns) / 1e9


def _rounded(values: Sequence[float | None]) -> tuple[float | None, ...]:
    return tuple(None if value is None else float(f"{value:.4g}") for value in values)
