"""Intervals and weights against values worked out by other means."""

import pytest

from tocsin.bench.campaign.statistics import Stratum, weigh, wilson_high, wilson_low, zero_high


@pytest.mark.parametrize(
    ("hits", "trials", "low", "high"),
    [
        (374, 386, 0.9464, 0.9821),  # the prototype's table prints [94.6, 98.2]
        (10, 10, 0.7225, 1.0),
        (0, 10, 0.0, 0.2775),
        (1, 2, 0.0945, 0.9055),
    ],
)
def test_wilson_interval(hits: int, trials: int, low: float, high: float) -> None:
    """Known intervals to four digits."""
    assert wilson_low(hits, trials) == pytest.approx(low, abs=2e-4)
    assert wilson_high(hits, trials) == pytest.approx(high, abs=2e-4)


def test_no_trials_say_nothing() -> None:
    """No data is never fine."""
    assert wilson_low(0, 0) == 0.0
    assert wilson_high(0, 0) == 1.0
    assert zero_high(0) == 1.0


def test_a_rate_that_was_never_seen_has_an_upper_bound() -> None:
    """300 clean trials: below 1 %; 3 / n for many."""
    assert zero_high(300) == pytest.approx(0.00994, abs=1e-4)
    assert zero_high(30_000_000) == pytest.approx(3 / 30_000_000, rel=0.01)


def test_strata_are_weighed_back_to_their_shares() -> None:
    """A stratum that was drawn nine times too often counts a ninth."""
    weighed = weigh(
        [
            Stratum(share=0.1, trials=90, harmful=45, shown=45, caught=45),  # harm 0.1 * 0.5 = 0.05
            Stratum(share=0.9, trials=10, harmful=1, shown=1, caught=0),  # harm 0.9 * 0.1 = 0.09
        ]
    )
    assert weighed is not None
    assert weighed.harm == pytest.approx(0.14)
    assert weighed.coverage == pytest.approx(0.05 / 0.14)
    assert weighed.effective < 46  # unequal weights tell less than their number
    assert weighed.low95 < weighed.coverage


def test_equal_weights_are_the_plain_share() -> None:
    """Then the effective size is the number of harmful cases."""
    weighed = weigh([Stratum(0.5, 100, 20, 20, 19), Stratum(0.5, 100, 30, 30, 30)])
    assert weighed is not None
    assert weighed.coverage == pytest.approx(49 / 50)
    assert weighed.effective == pytest.approx(50)
    assert weighed.low95 == pytest.approx(wilson_low(49, 50))


def test_nothing_harmful_has_no_coverage() -> None:
    """A share of nothing is not 100 %."""
    assert weigh([Stratum(1.0, 10, 0, 0, 0)]) is None
    assert weigh([]) is None


def test_a_sample_stands_for_its_stratum_but_tells_no_more_than_its_number() -> None:
    """A competitor shown 5 of 20 harmful cases has an effective size of 5, not of 20."""
    every = weigh([Stratum(1.0, 100, 20, 20, 16)])
    fifth = weigh([Stratum(1.0, 100, 20, 5, 4)])
    assert every is not None
    assert fifth is not None
    assert (fifth.harm, fifth.coverage) == (every.harm, pytest.approx(every.coverage))
    assert (every.effective, fifth.effective) == (pytest.approx(20), pytest.approx(5))
    assert fifth.low95 < every.low95


def test_a_stratum_of_which_nothing_was_shown_is_neither_caught_nor_missed() -> None:
    """Its harm counts, a detector's coverage is told over the others."""
    weighed = weigh([Stratum(0.5, 100, 20, 20, 10), Stratum(0.5, 100, 30, 0, 0)])
    assert weighed is not None
    assert weighed.harm == pytest.approx(0.25)
    assert weighed.coverage == pytest.approx(0.5)
    assert weigh([Stratum(1.0, 100, 30, 0, 0)]) is None


def test_a_stratum_that_was_drawn_too_often_adds_little() -> None:
    """300 loud cases of a rare stratum do not make 10 of the common one precise."""
    weighed = weigh([Stratum(0.03, 600, 300, 300, 300), Stratum(0.97, 200, 10, 10, 9)])
    assert weighed is not None
    assert weighed.coverage == pytest.approx(1 - 0.97 / 200 / (0.97 / 20 + 0.03 / 2))
    assert 10 < weighed.effective < 18
