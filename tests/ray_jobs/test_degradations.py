"""Degrade orders: what a body asks for, what the board keeps, what a replica does and undoes."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from tests.dashboards.relay.stubs import alert, notification
from tocsin.checker.breaker import Breaker
from tocsin.checker.degradation import Degrader
from tocsin.checker.switchboard import Switchboard
from tocsin.core.clock import ManualClock
from tocsin.core.degrade import DEGRADE_TTL_S, DegradeOrder
from tocsin.core.terms import Layer, Operator, Profile
from tocsin.ray_jobs.board import Board
from tocsin.ray_jobs.degradations import Degradations, Follower
from tocsin.ray_jobs.routes.hooks import orders_of

ORDER = {"operator": "attention", "reason": "a look", "ttl_s": 60.0}


class Replica:
    """What a replica does with the orders of a board, on a clock turned by hand."""

    def __init__(self) -> None:
        self.clock = ManualClock(1)
        self.board = Degradations(self.clock.wall_s)
        self.breaker = Breaker(clock=self.clock)
        self.switchboard = Switchboard(Profile.GUARD, clock=self.clock)
        self.degrader = Degrader(self.breaker, self.switchboard, self.clock)
        self.follower = Follower()

    def give(self, **changes: Any) -> None:
        self.board.put({**ORDER, **changes}, "api")
        self.step()

    def step(self) -> str:
        """One step: the orders of the board, then its own clock; the backend that serves."""
        self.follower.follow(self.board.in_force(), self.degrader)
        self.degrader.expire()
        self.switchboard.expire()
        return self.breaker.peek()


@pytest.fixture
def replica() -> Replica:
    return Replica()


def test_an_order_takes_effect_with_the_next_step_and_ends_by_itself(replica: Replica) -> None:
    """Although nobody takes it back and the board never speaks again."""
    assert replica.step() == "flash"
    replica.give()
    assert replica.step() == "sdpa"
    replica.clock.sleep(59.0)
    assert replica.step() == "sdpa"
    replica.clock.sleep(2.0)
    replica.degrader.expire()
    assert replica.breaker.peek() == "flash"


def test_an_order_names_its_backend(replica: Replica) -> None:
    """The last resort at once."""
    replica.give(backend="math")
    assert replica.step() == "math"


def test_an_order_that_is_taken_back_ends_with_the_next_step(replica: Replica) -> None:
    """And one that was never given is no matter."""
    replica.give()
    replica.give(ttl_s=0)
    assert replica.step() == "flash"
    replica.give(ttl_s=0, reason="never given")
    assert replica.step() == "flash"


def test_an_order_given_again_lasts_longer_and_moves_no_further_down(replica: Replica) -> None:
    """An alert that repeats renews its order; it must not walk down the chain."""
    for _ in range(5):
        replica.give()
        replica.clock.sleep(30.0)
        assert replica.step() == "sdpa"
    replica.clock.sleep(61.0)
    assert replica.step() == "flash"


def test_two_reasons_are_two_orders(replica: Replica) -> None:
    """Taking one back leaves the other."""
    replica.give(reason="alert:A")
    replica.give(reason="a person")
    replica.give(reason="a person", ttl_s=0)
    assert replica.step() == "sdpa"
    replica.give(reason="alert:A", ttl_s=0)
    assert replica.step() == "flash"


def test_two_operators_of_one_reason_are_two_orders(replica: Replica) -> None:
    """An alert about attention does not replace one about rope."""
    replica.give(operator="attention")
    replica.give(operator="rope")
    assert replica.step() == "sdpa"
    assert replica.switchboard.profile_for(Operator.ROPE, Layer.NUMERICAL) is Profile.FULL
    replica.give(operator="rope", ttl_s=0)
    assert replica.step() == "sdpa"
    assert replica.switchboard.profile_for(Operator.ROPE, Layer.NUMERICAL) is Profile.GUARD


def test_a_replica_that_starts_late_takes_over_what_is_left_of_an_order(replica: Replica) -> None:
    """As with switches: the board's time, not the replica's."""
    replica.board.put(ORDER, "api")
    replica.clock.sleep(40.0)
    assert replica.step() == "sdpa"
    replica.clock.sleep(21.0)
    assert replica.step() == "flash"


def test_the_status_shows_what_is_in_force_and_for_how_long(replica: Replica) -> None:
    """As heartbeats carry it."""
    replica.give()
    replica.clock.sleep(10.0)
    (one,) = replica.degrader.status()
    assert one == {
        "operator": "attention",
        "backend": "sdpa",
        "reason": "a look:attention",
        "ttl_left_s": 50.0,
    }


# --- the board ---


async def test_the_board_hands_orders_to_every_replica_and_keeps_a_log() -> None:
    """Who, what, until when; taken back means gone from the poll."""
    board = Board()
    revision = await board.degrade(ORDER, "api")
    for replica in ("a", "b"):
        polled = await board.poll(replica, -1)
        assert polled["revision"] == revision
        (one,) = polled["degradations"]
        assert one["order"]["operator"] == "attention"
        assert 59.0 < one["left_s"] <= 60.0
    await board.degrade({**ORDER, "ttl_s": 0.0}, "api")
    assert (await board.poll("a", -1))["degradations"] == []
    audit = board.degradations()["audit"]
    assert [(one["actor"], one["ttl_s"]) for one in audit] == [("api", 60.0), ("api", 0.0)]
    kinds = [event["kind"] for event in board.events(0)[1]]
    assert kinds == ["degrade_ordered", "degrade_ordered"]


async def test_a_window_that_is_crossed_in_the_fleet_degrades_every_replica() -> None:
    """Under the reason that each replica uses itself, so that both are one order."""
    board = Board()
    await board._crossed("tiny", "attention")
    (one,) = (await board.poll("a", -1))["degradations"]
    assert one["order"]["reason"] == "p0:attention"
    assert one["order"]["ttl_s"] == DEGRADE_TTL_S
    assert board.degradations()["audit"][0]["actor"] == "auto"


# --- the body ---


def body(**changes: Any) -> bytes:
    order = {key: value for key, value in {**ORDER, **changes}.items() if value is not None}
    return json.dumps(order).encode()


def test_an_order_is_read_as_it_is_sent() -> None:
    """With the default time limit where none is given."""
    orders, ignored = orders_of(body(ttl_s=None, failure_id="F1", backend="math"))
    assert ignored is None
    assert orders == [
        DegradeOrder(operator=Operator.ATTENTION, backend="math", reason="a look", failure_id="F1")
    ]
    assert orders[0].ttl_s == DEGRADE_TTL_S


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "body: not JSON"),
        (b"[]", "body: found list"),
        (b"{}", "operator: "),
        (body(operator="fax"), "operator: found 'fax'"),
        (body(ttl_s=-1), "ttl_s: found -1"),
        (body(ttl_s=1e9), "ttl_s: found 1000000000.0"),
        (body(ttl_s="NaN"), "ttl_s: found 'NaN'"),
        (body(reason=""), "reason: found ''"),
        (body(backend="flesh"), "backend: found 'flesh', expected one of flash, sdpa, math"),
        (body(layer="state"), "layer: found 'state'"),
        (json.dumps({"version": "3", "alerts": [alert()]}).encode(), "version: found '3'"),
        (json.dumps({"version": "4", "alerts": []}).encode(), "alerts: found"),
        (json.dumps({"version": "4", "alerts": 7}).encode(), "alerts: found 7"),
    ],
)
def test_a_body_that_is_none_is_one_line(content: bytes, said: str) -> None:
    """Where, what was found, what was expected."""
    with pytest.raises(ValueError, match="expected") as raised:
        orders_of(content)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_notification_of_alertmanager_becomes_orders() -> None:
    """Firing alerts with an operator that is known; each other one says why it is none."""
    resolved = alert("B", operator="rope", status="resolved", endsAt="2026-11-29T10:05:00Z")
    nowhere = alert("C", operator="")
    again = alert("D", operator="attention")
    sent = notification(alert("A"), resolved, nowhere, again)
    orders, ignored = orders_of(json.dumps(sent).encode())
    assert [(str(order.operator), order.reason) for order in orders] == [("attention", "alert:D")]
    assert orders[0].failure_id == "01JD0000000000000000000000"
    assert orders[0].ttl_s == DEGRADE_TTL_S
    assert ignored is not None
    assert [line.split(":")[0] for line in ignored] == ["B", "C"]


def test_an_order_is_frozen_and_knows_no_other_field() -> None:
    """It travels between processes."""
    with pytest.raises(ValidationError, match="extra"):
        DegradeOrder.model_validate({**ORDER, "layer": "state"})
