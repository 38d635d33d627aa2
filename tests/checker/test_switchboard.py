"""The switchboard: most specific order wins, orders end by the clock, everything is audited."""

from typing import Any

import pytest
from pydantic import ValidationError

from tocsin.checker.switchboard import Switchboard, SwitchOrder
from tocsin.core.clock import ManualClock
from tocsin.core.history import EventKind
from tocsin.core.terms import Layer, Operator, Profile


def order(profile: str, ttl_s: float = 10, **scope: Any) -> SwitchOrder:
    return SwitchOrder(profile=Profile(profile), ttl_s=ttl_s, reason="a test", **scope)


def test_an_operator_beats_a_layer_beats_everything() -> None:
    """Proves the order of precedence."""
    board = Switchboard("full", clock=ManualClock())
    board.switch(order("off"))
    assert board.profile_for(Operator.LINEAR, Layer.NUMERICAL) is Profile.OFF
    board.switch(order("guard", layer=Layer.NUMERICAL))
    assert board.profile_for(Operator.LINEAR, Layer.NUMERICAL) is Profile.GUARD
    board.switch(order("full", operator=Operator.LINEAR))
    assert board.profile_for(Operator.LINEAR, Layer.NUMERICAL) is Profile.FULL
    assert board.profile_for(Operator.ROPE, Layer.NUMERICAL) is Profile.GUARD
    assert board.profile_for(Operator.KV_READ, Layer.STATE) is Profile.OFF


def test_each_order_ends_by_itself(sink: Any) -> None:
    """Proves the TTL, to the nanosecond before, and that its end is told."""
    clock = ManualClock()
    board = Switchboard("full", clock=clock, sink=sink, replica="r1")
    board.switch(order("off", ttl_s=10))
    clock.ns = 10_000_000_000 - 1
    board.expire()
    assert board.profile_for(Operator.LINEAR, Layer.NUMERICAL) is Profile.OFF
    clock.ns += 1
    board.expire()
    assert board.profile_for(Operator.LINEAR, Layer.NUMERICAL) is Profile.FULL
    events = sink.of(EventKind.SWITCHED)
    assert [event.data["after"] for event in events] == ["off", "full"]
    assert events[1].data["reason"] == "the TTL ended"
    assert {event.replica for event in events} == {"r1"}


def test_a_later_order_for_the_same_scope_replaces_the_first() -> None:
    """Proves that two orders do not stack up."""
    clock = ManualClock()
    board = Switchboard("full", clock=clock)
    board.switch(order("off", ttl_s=1))
    board.switch(order("guard", ttl_s=100))
    clock.sleep(2)
    board.expire()
    assert board.profile_for(Operator.LINEAR, Layer.NUMERICAL) is Profile.GUARD
    assert len(board.status()["orders"]) == 1


def test_the_status_says_what_is_in_force_and_for_how_long() -> None:
    """Proves the reading that people get."""
    clock = ManualClock()
    board = Switchboard("guard", clock=clock)
    board.switch(order("off", ttl_s=30, layer=Layer.STATE))
    clock.sleep(10)
    status = board.status()
    assert status["profile"] == "guard"
    assert status["orders"] == [
        {"scope": "layer:state", "profile": "off", "reason": "a test", "ttl_left_s": 20.0}
    ]
    assert status["audit"][0]["before"] == "guard"


def test_the_base_profile_can_be_changed_for_good() -> None:
    """Proves that this change does not time out, and is audited."""
    clock = ManualClock()
    board = Switchboard("full", clock=clock)
    revision = board.revision
    board.set_profile("off", "maintenance")
    clock.sleep(1e6)
    board.expire()
    assert board.profile_for(Operator.LINEAR, Layer.NUMERICAL) is Profile.OFF
    assert board.revision == revision + 1
    assert board.status()["audit"][-1]["reason"] == "maintenance"


@pytest.mark.parametrize(
    "body",
    [
        {"profile": "loud", "ttl_s": 1, "reason": "x"},
        {"profile": "off", "ttl_s": 0, "reason": "x"},
        {"profile": "off", "ttl_s": 1e9, "reason": "x"},
        {"profile": "off", "ttl_s": 1, "reason": ""},
        {"profile": "off", "ttl_s": 1},
        {"profile": "off", "ttl_s": 1, "reason": "x", "colour": "red"},
        {"profile": "off", "ttl_s": 1, "reason": "x", "operator": "spline"},
        {"profile": "off", "ttl_s": 1, "reason": "x", "operator": "rope", "layer": "state"},
    ],
)
def test_a_wrong_order_is_refused(body: dict[str, Any]) -> None:
    """Proves that nothing unknown, endless or unexplained is put in force."""
    with pytest.raises(ValidationError):
        SwitchOrder.model_validate(body)
