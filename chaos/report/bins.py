"""Many samples into few bins: percentiles and rates on one time axis, whatever their number."""

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


def percentiles_by_bin(
    t_s: FloatArray, values: FloatArray, edges_s: FloatArray, quantiles: Sequence[float]
) -> list[list[float | None]]:
    """Percentiles of the values in each bin.

    Args:
        t_s: time of each sample.
        values: the samples, same length.
        edges_s: bin edges, ascending; samples outside are left out.
        quantiles: in [0, 1].

    Returns:
        One list a quantile with one entry a bin; None where a bin has no sample.
    """
    bin_count = len(edges_s) - 1
    where = np.searchsorted(edges_s, t_s, side="right") - 1
    where[t_s == edges_s[-1]] = bin_count - 1
    inside = (where >= 0) & (where < bin_count)
    order = np.lexsort((values[inside], where[inside]))
    kept, sorted_where = values[inside][order], where[inside][order]
    bounds = np.searchsorted(sorted_where, np.arange(bin_count + 1))
    rows: list[list[float | None]] = [[] for _ in quantiles]
    for begin, end in itertools.pairwise(bounds):
        for row, quantile in zip(rows, quantiles, strict=True):
            row.append(_sorted_quantile(kept[begin:end], quantile))
    return rows


def counts_by_bin(t_s: FloatArray, edges_s: FloatArray) -> list[int]:
    """How many samples fall into each bin."""
    return [int(count) for count in np.histogram(t_s, bins=edges_s)[0]]


def quantile_of(values: FloatArray, quantile: float) -> float | None:
    """One percentile of all values, None without any."""
    return _sorted_quantile(np.sort(values), quantile)


def _sorted_quantile(values: FloatArray, quantile: float) -> float | None:
    """The nearest-rank percentile: always a value that was really measured."""
    if not len(values):
        return None
    return float(values[min(len(values) - 1, int(np.ceil(quantile * len(values))) - 1)])
