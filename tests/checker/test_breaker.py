"""The breaker: closed, open after three failures in a row, one trial, closed again."""

from typing import Any

import pytest

from tocsin.checker.breaker import Breaker
from tocsin.core.clock import ManualClock
from tocsin.core.history import EventKind
from tocsin.core.terms import BreakerState


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def breaker(clock: ManualClock, sink: Any) -> Breaker:
    return Breaker(failures_max=3, cooldown_s=10, clock=clock, sink=sink)


def fail(breaker: Breaker, times: int, backend: str = "flash") -> None:
    for _ in range(times):
        breaker.failed(backend, "it raised")


def test_two_failures_in_a_row_keep_it_closed_and_the_third_opens_it(breaker: Breaker) -> None:
    """Proves the count, and its nearest miss."""
    fail(breaker, 2)
    assert (breaker.state(), breaker.choose()) == (BreakerState.CLOSED, "flash")
    fail(breaker, 1)
    assert (breaker.state(), breaker.choose()) == (BreakerState.OPEN, "sdpa")


def test_a_success_in_between_starts_the_count_again(breaker: Breaker) -> None:
    """Proves `in a row`."""
    for _ in range(5):
        fail(breaker, 2)
        breaker.succeeded("flash")
    assert breaker.state() is BreakerState.CLOSED


def test_after_the_cooldown_one_trial_decides(breaker: Breaker, clock: ManualClock) -> None:
    """Proves half-open: one trial only, and its success closes the circuit."""
    fail(breaker, 3)
    clock.sleep(9.9)
    assert breaker.choose() == "sdpa"
    clock.sleep(0.2)
    assert breaker.choose() == "flash"
    assert breaker.state() is BreakerState.HALF_OPEN
    assert breaker.choose() == "sdpa"
    breaker.succeeded("flash")
    assert (breaker.state(), breaker.choose()) == (BreakerState.CLOSED, "flash")


def test_a_failed_trial_opens_it_for_another_cooldown(breaker: Breaker, clock: ManualClock) -> None:
    """Proves that one failure is enough while half-open."""
    fail(breaker, 3)
    clock.sleep(10)
    assert breaker.choose() == "flash"
    fail(breaker, 1)
    assert breaker.state() is BreakerState.OPEN
    clock.sleep(9)
    assert breaker.choose() == "sdpa"
    clock.sleep(1)
    assert breaker.choose() == "flash"


def test_a_trial_that_nobody_reports_is_given_up(breaker: Breaker, clock: ManualClock) -> None:
    """Proves that a lost step does not keep the primary away for ever."""
    fail(breaker, 3)
    clock.sleep(10)
    assert breaker.choose() == "flash"
    assert breaker.choose() == "sdpa"
    clock.sleep(10)
    assert breaker.choose() == "flash"


def test_the_last_backend_serves_whatever_happened_to_it(breaker: Breaker) -> None:
    """Proves that the chain has an end that always answers."""
    for backend in ("flash", "sdpa", "math"):
        fail(breaker, 9, backend)
    assert breaker.choose() == "math"
    assert breaker.fallback("math") is None


def test_the_fallback_passes_over_an_open_circuit(breaker: Breaker) -> None:
    """Proves that a step does not fall from one broken backend onto another."""
    assert breaker.fallback("flash") == "sdpa"
    fail(breaker, 3, "sdpa")
    assert breaker.fallback("flash") == "math"
    assert breaker.fallback("unknown") is None


def test_a_forced_degradation_lasts_as_long_as_its_reason(breaker: Breaker) -> None:
    """Proves the memory watermark's way in and out, next to a second reason."""
    breaker.force("memory", "sdpa")
    breaker.force("operator", "math")
    assert breaker.choose() == "math"
    breaker.unforce("operator")
    assert breaker.choose() == "sdpa"
    assert not breaker.allows("flash")
    assert breaker.allows("math")
    breaker.unforce("memory")
    assert breaker.choose() == "flash"
    assert breaker.allows("flash")


def test_every_change_is_told_once(breaker: Breaker, clock: ManualClock, sink: Any) -> None:
    """Proves the events: open, half-open, closed; and no event without a change."""
    fail(breaker, 4)
    clock.sleep(10)
    breaker.choose()
    breaker.choose()
    breaker.succeeded("flash")
    breaker.succeeded("flash")
    moves = [(e.data["before"], e.data["after"]) for e in sink.of(EventKind.BREAKER)]
    assert moves == [("closed", "open"), ("open", "half_open"), ("half_open", "closed")]


def test_only_answers_off_the_primary_carry_a_label(breaker: Breaker) -> None:
    """Proves the label's words."""
    assert breaker.degraded("flash") == ()
    assert breaker.degraded("sdpa") == ("attention:sdpa",)


def test_a_chain_needs_different_names() -> None:
    """Proves that a wrong chain is refused."""
    for chain in ((), ("flash", "flash")):
        with pytest.raises(ValueError, match="expected different names"):
            Breaker(chain)
