"""Paired ratios: the same request against itself, with an honest interval."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.chaos.compare.paired import PAIRS_LEAST, paired_ratios
from tocsin.core.history import Outcome, RequestRecord

MS = 1_000_000


def _record(name: str, ttft_ms: float, outcome: Outcome = Outcome.OK) -> RequestRecord:
    begun = 1_000 * MS
    return RequestRecord(
        request_id=name,
        prompt_id="p",
        t_invoke_ns=begun,
        stream=True,
        max_new_tokens=4,
        t_first_ns=begun + int(ttft_ms * MS),
        t_end_ns=begun + int(2 * ttft_ms * MS),
        outcome=outcome,
    )


@given(
    st.lists(st.floats(1.0, 500.0), min_size=PAIRS_LEAST, max_size=40),
    st.floats(0.2, 5.0),
)
def test_a_common_factor_is_found_exactly(times_ms: list[float], factor: float) -> None:
    """Whatever the prompts cost, a run that is k times as slow has the ratio k."""
    a = [_record(f"r{i}", ms) for i, ms in enumerate(times_ms)]
    b = [_record(f"r{i}", ms * factor) for i, ms in enumerate(times_ms)]
    one = next(one for one in paired_ratios(a, b, (), 0) if one.measure == "first token")
    assert one.pairs == len(times_ms)
    assert one.ratio == pytest.approx(factor, rel=1e-3)
    assert one.low is not None
    assert one.high is not None
    assert one.low <= one.ratio <= one.high


def test_only_what_both_runs_answered_makes_a_pair() -> None:
    """A failed request has no time, and one that the other run did not send has no partner."""
    a = [_record(f"r{i}", 10.0) for i in range(12)]
    b = [_record(f"r{i}", 20.0, Outcome.FAIL if i < 2 else Outcome.OK) for i in range(11)]
    one = next(one for one in paired_ratios(a, b, (), 0) if one.measure == "first token")
    assert one.pairs == 9
    assert one.ratio == pytest.approx(2.0)


def test_too_few_pairs_have_no_ratio() -> None:
    """An interval over a handful says nothing."""
    a = [_record(f"r{i}", 10.0) for i in range(PAIRS_LEAST - 1)]
    one = next(one for one in paired_ratios(a, a, (), 0) if one.measure == "first token")
    assert (one.pairs, one.ratio, one.low) == (PAIRS_LEAST - 1, None, None)
