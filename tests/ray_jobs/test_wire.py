"""What travels between processes arrives as it left."""

import json
from dataclasses import asdict

import pytest

from tocsin.core.faulting import Evidence, Order, OrderStatus
from tocsin.core.history import Event, EventKind
from tocsin.core.requests import Finish, FinishEvent, Request, Sampling, TokenEvent
from tocsin.ray_jobs import wire


def test_a_request_comes_back_with_its_delivered_tokens_and_sampling() -> None:
    """All fields, through JSON, which makes lists of tuples."""
    request = Request("r", (1, 2), 4, Sampling(0.5, 0.9, 3, 7), (2,), True, (5, 6))
    assert wire.request_from_wire(json.loads(json.dumps(asdict(request)))) == request


@pytest.mark.parametrize(
    "event",
    [
        TokenEvent("r", 3, 7, 0.5, True, ("attention:sdpa",)),
        FinishEvent("r", Finish.REFUSED, 3, ("attention:sdpa",), "01J", "no page was clean"),
    ],
)
def test_tokens_and_endings_come_back(event: TokenEvent | FinishEvent) -> None:
    """Labels and failure ids included."""
    assert (
        wire.step_event_from_wire(json.loads(json.dumps(wire.step_event_to_wire(event)))) == event
    )


def test_an_event_comes_back() -> None:
    """Its kind is an `EventKind` again, not a text."""
    event = Event(EventKind.BREAKER, 5, "a", 3, "r", {"reason": "x"})
    back = wire.event_from_wire(json.loads(json.dumps(wire.event_to_wire(event))))
    assert back == event
    assert back.kind is EventKind.BREAKER


@pytest.mark.parametrize("evidence", [None, Evidence("page 3", "1", "nan", ("r",))])
def test_a_status_comes_back_with_its_evidence(evidence: Evidence | None) -> None:
    """Evidence decides whether a fault counts as fired."""
    status = OrderStatus("kv@1", "fired", evidence, 5, 6)
    assert wire.status_from_wire(json.loads(json.dumps(asdict(status)))) == status


def test_an_order_comes_back() -> None:
    """With its parameters."""
    order = Order("kv@1", "kv.bitflip", 9, 20, 15.0, {"tensor": "v"})
    assert wire.order_from_wire(json.loads(json.dumps(asdict(order)))) == order
