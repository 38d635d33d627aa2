"""Binning and scales: percentiles are measured values, gaps stay gaps, axes are round."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.report.recorded import START_NS
from tests.chaos.report.verdicts import passing
from tocsin.chaos.report.bins import counts_by_bin, percentiles_by_bin, quantile_of
from tocsin.chaos.report.model import Span
from tocsin.chaos.report.samples import phases_of, samples_of, series_of
from tocsin.chaos.report.scale import amount_text, seconds_text, ticks, time_step, value_axis
from tocsin.core.history import Chunk, Outcome, RequestRecord


def record(**changes: object) -> RequestRecord:
    """A request sent at 1 s with tokens at 1.1, 1.15 and 1.25 s."""
    chunks = [Chunk(START_NS + ms * 1_000_000, k, 7, "") for k, ms in enumerate((1100, 1150, 1250))]
    plain = RequestRecord(
        request_id="r",
        prompt_id="p",
        t_invoke_ns=START_NS + 1_000_000_000,
        stream=True,
        max_new_tokens=3,
        outcome=Outcome.OK,
        t_first_ns=chunks[0].t_ns,
        t_end_ns=chunks[-1].t_ns,
        chunks=chunks,
    )
    return replace(plain, **changes)


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 1e6)), max_size=60))
def test_each_bin_has_the_percentile_of_its_own_samples(points: list[tuple[float, float]]) -> None:
    """Compared with the plain definition: nearest rank over the samples of each bin."""
    t_s = np.array([t for t, _ in points], dtype=float)
    values = np.array([v for _, v in points], dtype=float)
    edges_s = np.linspace(0, 10, 6)
    (found,) = percentiles_by_bin(t_s, values, edges_s, (0.5,))
    for k in range(5):
        inside = sorted(v for t, v in points if 2 * k <= t < 2 * k + 2 or (k == 4 and t == 10))
        expected = inside[(len(inside) + 1) // 2 - 1] if inside else None
        assert found[k] == expected
    assert sum(counts_by_bin(t_s, edges_s)) == len(points)


def test_a_percentile_is_a_value_that_was_measured() -> None:
    """No interpolation: the p99 of few samples is their largest; of none there is none."""
    assert quantile_of(np.array([3.0, 1.0, 2.0]), 0.99) == 3.0
    assert quantile_of(np.array([3.0, 1.0, 2.0]), 0.5) == 2.0
    assert quantile_of(np.array([]), 0.5) is None


def test_samples_are_what_the_client_measured() -> None:
    """First-token wait, gaps and arrival times of one record, exactly."""
    samples = samples_of([record()], START_NS)
    assert samples.first_ms.tolist() == [100.0]
    assert samples.gap_ms.tolist() == [50.0, 100.0]
    assert samples.token_s.tolist() == pytest.approx([1.1, 1.15, 1.25])
    assert samples.failed_s.size == 0


@pytest.mark.parametrize("outcome", [Outcome.FAIL, Outcome.INFO, Outcome.OPEN])
def test_honest_requests_without_an_answer_are_counted(outcome: Outcome) -> None:
    """A rejected malformed request and a cancelled one are no failures; these are."""
    lost = record(outcome=outcome, chunks=[], t_first_ns=0, t_end_ns=0)
    samples = samples_of([lost, record(outcome=outcome, malformed="empty")], START_NS)
    assert samples.failed_s.tolist() == [1.0]
    assert samples_of([record(outcome=Outcome.CANCELLED)], START_NS).failed_s.size == 0


def test_a_bin_without_samples_is_a_gap() -> None:
    """Nothing is drawn where nothing was measured; throughput there is zero, not unknown."""
    series = series_of(samples_of([record()], START_NS), 10.0)
    assert [value for value in series.ttft_p50_ms if value is not None] == [100.0]
    assert None in series.ttft_p50_ms
    assert 0.0 in series.tokens_per_s
    assert None not in series.tokens_per_s


def test_a_run_without_tokens_has_no_throughput_at_all() -> None:
    """Unknown, not zero."""
    series = series_of(samples_of([], START_NS), 10.0)
    assert set(series.tokens_per_s) == {None}
    assert series.empty


def test_the_number_of_bins_does_not_grow_with_the_run() -> None:
    """Many samples make full bins, not more of them."""
    records = passing()[0].records
    few = series_of(samples_of(records[:10], START_NS), 62.0)
    many = series_of(samples_of(records * 20, START_NS), 62.0)
    assert len(few.failures) == 16
    assert len(many.failures) == 120


def test_a_request_belongs_to_the_phase_in_which_it_was_sent() -> None:
    """Counted once, over all phases; tokens count where they arrived."""
    late = record(t_invoke_ns=START_NS + 5_000_000_000, outcome=Outcome.FAIL, chunks=[])
    records = [record(degraded=("sdpa",)), replace(late, t_first_ns=0), record(malformed="empty")]
    spans = (Span(0, 1.2, "before", ""), Span(1.2, 6, "after", ""))
    before, after = phases_of(records, samples_of(records, START_NS), spans, START_NS)
    assert (before.requests, before.ok, before.failed, before.degraded) == (1, 1, 0, 1)
    assert (after.requests, after.ok, after.failed, after.degraded) == (1, 0, 1, 0)
    assert after.ttft_p50_ms is None
    assert after.gap_p99_ms == 100.0


@given(st.lists(st.floats(0.01, 1e7), min_size=1, max_size=40))
def test_every_value_lies_on_its_axis(values: list[float]) -> None:
    """No value is cut off, and the ticks are few and inside."""
    axis = value_axis(values, 100.0, 0.0)
    assert axis.high >= max(values)
    assert 2 <= len(ticks(axis, 3)) <= 6
    assert all(0.0 <= axis(value) <= 100.0 for value in [*values, *ticks(axis, 3)])


def test_an_axis_turns_logarithmic_when_one_spike_would_flatten_the_rest() -> None:
    """A stall of seconds among gaps of milliseconds."""
    assert value_axis([30, 31, 29, 3400], 100, 0).logarithmic
    assert not value_axis([30, 31, 29, 90], 100, 0).logarithmic


@pytest.mark.parametrize(("length_s", "step"), [(62, 10), (0.4, 0.05), (3600, 300), (119, 10)])
def test_time_is_marked_at_round_moments(length_s: float, step: float) -> None:
    """About a dozen marks, at steps that people count in."""
    assert time_step(length_s, 12) == pytest.approx(step)


@pytest.mark.parametrize(
    ("value", "text"), [(0.05, "0.05"), (45, "45"), (1000, "1000"), (20_000, "20k"), (3e6, "3M")]
)
def test_amounts_are_short(value: float, text: str) -> None:
    """Three figures at most before a unit takes over."""
    assert amount_text(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 s"), (0.5, "0.5 s"), (45, "45 s"), (125, "2:05"), (3725, "1:02:05")]
)
def test_times_on_the_axis_are_read_at_a_glance(value: float, text: str) -> None:
    """Seconds up to two minutes, then a clock."""
    assert seconds_text(value) == text
