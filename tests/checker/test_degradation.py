"""Degrade orders in a replica: a lighter backend or full checks, and back when the time is over."""

import pytest

from tocsin.checker.breaker import Breaker
from tocsin.checker.degradation import Degrader
from tocsin.checker.switchboard import Switchboard
from tocsin.core.clock import ManualClock
from tocsin.core.degrade import p0_reason
from tocsin.core.terms import Layer, Operator, Profile


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def breaker(clock: ManualClock) -> Breaker:
    return Breaker(clock=clock)


@pytest.fixture
def switchboard(clock: ManualClock) -> Switchboard:
    return Switchboard(Profile.GUARD, clock=clock)


@pytest.fixture
def degrader(breaker: Breaker, switchboard: Switchboard, clock: ManualClock) -> Degrader:
    return Degrader(breaker, switchboard, clock)


@pytest.mark.parametrize("operator", ["attention", "flash_attn_varlen", "kv_update", "kv_read"])
def test_an_operator_of_the_backends_is_served_by_the_next_one_until_the_ttl_ends(
    degrader: Degrader, breaker: Breaker, clock: ManualClock, operator: str
) -> None:
    """And by the preferred one again afterwards, without anybody's help."""
    degrader.degrade(operator, reason=p0_reason(operator), ttl_s=600)
    assert breaker.choose() == "sdpa"
    clock.sleep(599)
    degrader.expire()
    assert breaker.choose() == "sdpa"
    clock.sleep(1)
    degrader.expire()
    assert breaker.choose() == "flash"


def test_an_order_given_again_lasts_longer_and_goes_no_further_down(
    degrader: Degrader, breaker: Breaker, clock: ManualClock
) -> None:
    """The replica and the board give the same order for the same failures."""
    for _ in range(3):
        degrader.degrade("attention", reason="p0:attention", ttl_s=600)
        clock.sleep(300)
        degrader.expire()
    assert breaker.peek() == "sdpa"
    assert [round(one["ttl_left_s"]) for one in degrader.status()] == [300]


def test_any_other_operator_gets_all_its_checks(
    degrader: Degrader, breaker: Breaker, switchboard: Switchboard, clock: ManualClock
) -> None:
    """There is no second RMSNorm to serve from; what is caught is repaired."""
    degrader.degrade("rms_norm", reason="p0:rms_norm", ttl_s=60)
    assert breaker.peek() == "flash"
    assert switchboard.profile_for(Operator.RMS_NORM, Layer.NUMERICAL) is Profile.FULL
    assert switchboard.changes == {"auto": 1}
    clock.sleep(60)
    degrader.expire()
    switchboard.expire()
    assert switchboard.profile_for(Operator.RMS_NORM, Layer.NUMERICAL) is Profile.GUARD
    assert degrader.status() == []


@pytest.mark.parametrize("operator", ["attention", "rms_norm"])
def test_an_order_can_be_taken_back(
    degrader: Degrader, breaker: Breaker, switchboard: Switchboard, operator: str
) -> None:
    """By a person who has looked; twice is no matter."""
    degrader.degrade(operator, reason="by hand")
    assert degrader.in_force("by hand")
    for _ in range(2):
        degrader.lift(operator, reason="by hand")
    assert not degrader.in_force("by hand")
    assert breaker.peek() == "flash"
    assert switchboard.profile_for(Operator.RMS_NORM, Layer.NUMERICAL) is Profile.GUARD


def test_at_the_end_of_the_chain_there_is_nowhere_to_go(
    degrader: Degrader, breaker: Breaker
) -> None:
    """The last backend serves on."""
    degrader.degrade("attention", reason="memory", backend="math")
    degrader.degrade("attention", reason="p0:attention")
    assert breaker.choose() == "math"


def test_an_unknown_operator_is_refused(degrader: Degrader) -> None:
    """It came from outside."""
    with pytest.raises(ValueError, match="warp_drive"):
        degrader.degrade("warp_drive", reason="x")
