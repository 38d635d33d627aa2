"""The P0 boundary: ten failures in a minute never, eleven always, whoever looks and when."""

from bisect import bisect_right

from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.checker.window import HOLD_S, FailureWindow, worst_window
from tocsin.core.clock import ManualClock

TIMES = st.lists(st.integers(0, 400_000), min_size=0, max_size=60).map(sorted)
"""Milliseconds of failures."""


def count_in_span(times_ms: list[int], at_ms: int) -> int:
    """The number of failures in (at - 60 s, at], counted the slow way."""
    return sum(at_ms - 60_000 < one <= at_ms for one in times_ms)


@given(TIMES)
def test_a_crossing_is_told_at_the_eleventh_failure_of_a_minute_and_at_no_other(
    times_ms: list[int],
) -> None:
    """Against a plain count of every window, with the memory of eleven ticks."""
    clock = ManualClock()
    window = FailureWindow(clock)
    was_over = False
    for index, time_ms in enumerate(times_ms):
        clock.ns = time_ms * 1_000_000
        so_far = times_ms[: index + 1]
        # Equal times come one after another: only those before count.
        count = count_in_span(so_far, time_ms)
        if count - 1 <= 10:
            was_over = False
        assert window.tick("rope") == (count > 10 and not was_over)
        assert window.over("rope") == (count > 10)
        was_over = was_over or count > 10


def test_ten_never_and_eleven_always() -> None:
    """Ten in one instant are borne; one more of the same minute is not; a minute later it is."""
    clock = ManualClock()
    window = FailureWindow(clock)
    assert not any(window.tick("rope") for _ in range(10))
    clock.sleep(59.999)
    assert window.tick("rope")
    clock.sleep(0.002)
    assert not window.over("rope")
    assert not window.tick("rope")


def test_operators_are_counted_apart() -> None:
    """Six of one and six of another are not eleven of either."""
    window = FailureWindow(ManualClock())
    assert not any(window.tick(name) for name in ("rope", "linear") * 6)


def test_a_storm_takes_no_memory() -> None:
    """A million failures hold eleven ticks."""
    window = FailureWindow(ManualClock())
    crossings = sum(window.tick("rope") for _ in range(100_000))
    assert crossings == 1
    assert len(window._ticks["rope"]) == 11


@given(TIMES, st.integers(0, 600_000))
def test_the_worst_window_is_the_largest_count_of_any_minute_of_the_last_two(
    times_ms: list[int], now_ms: int
) -> None:
    """Against a count at every failure."""
    past = times_ms[: bisect_right(times_ms, now_ms)]
    recent = [one for one in past if now_ms - 120_000 < one]
    expected = max((count_in_span(recent, one) for one in recent), default=0)
    assert worst_window([one / 1000 for one in past], now_ms / 1000) == expected


@settings(max_examples=300)
@given(
    times_ms=TIMES,
    scrape_s=st.sampled_from((1, 5, 15, 30)),
    offset_ms=st.integers(0, 29_999),
    born_ms=st.integers(0, 60_000),
    blind_s=st.sampled_from((0, 10)),
)
def test_scrapes_see_eleven_and_never_see_ten_as_eleven(
    times_ms: list[int], scrape_s: int, offset_ms: int, born_ms: int, blind_s: int
) -> None:
    """The gauge as Prometheus reads it: unaligned, born late, with a gap for a restart.

    Whatever the scrape interval, a rule `> 10` on the gauge holds at some scrape exactly if some
    minute had more than ten failures, provided a scrape comes within a minute of the eleventh.
    """
    worst = max((count_in_span(times_ms, one) for one in times_ms), default=0)
    end_ms = max(times_ms, default=0) + int(HOLD_S * 1000)
    scrapes = [
        at_ms
        for at_ms in range(born_ms + offset_ms % (scrape_s * 1000), end_ms, scrape_s * 1000)
        if not 100_000 <= at_ms < 100_000 + blind_s * 1000
    ]
    seen = [
        worst_window([one / 1000 for one in times_ms if one <= at_ms], at_ms / 1000)
        for at_ms in scrapes
    ]
    if worst <= 10:
        assert all(value <= 10 for value in seen)
    crossed_ms = [one for one in times_ms if count_in_span(times_ms, one) > 10]
    # The window that ends at the eleventh failure is shown whole for a minute after it.
    if any(any(one <= at < one + 60_000 for at in scrapes) for one in crossed_ms):
        assert any(value > 10 for value in seen)
    if worst > 10 and born_ms == 0:
        assert any(value > 10 for value in seen)
