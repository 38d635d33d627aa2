"""What a worker tells the board: under the client's own request ids, and once."""

import json

import pytest

from tocsin.core.faulting import Evidence, OrderStatus
from tocsin.core.history import Event, EventKind
from tocsin.ray_jobs.wire import event_from_wire, status_from_wire
from tocsin.ray_jobs.worker import Outbox


def test_an_event_leaves_under_the_clients_own_request_ids() -> None:
    """The suffix that tells attempts apart stays inside, also in the details."""
    outbox = Outbox("a")
    data = {"request_ids": ["r1#2", "r2"], "failure_id": "01J"}
    outbox.emit(Event(EventKind.CHECK_FAILED, 5, "", 3, "r1#2", data))
    events, _ = outbox.drain()
    event = event_from_wire(events[0])
    assert (event.request_id, event.replica) == ("r1", "a")
    assert event.data["request_ids"] == ["r1", "r2"]
    assert data["request_ids"] == ["r1#2", "r2"]  # the journal's own record is left alone


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ("fired", EventKind.FAULT_FIRED),
        ("healed", EventKind.FAULT_HEALED),
        ("unhealed", EventKind.FAULT_HEALED),
        ("expired", EventKind.FAULT_DISARMED),
        ("disarmed", EventKind.FAULT_DISARMED),
    ],
)
def test_a_change_of_an_order_is_a_status_and_an_event(state: str, kind: EventKind) -> None:
    """With its evidence, JSON-safe."""
    outbox = Outbox("a")
    outbox.report(OrderStatus("kv@1", state, Evidence("page 3", "0", "nan", ("r1#1",)), 5, 6))
    events, statuses = json.loads(json.dumps(outbox.drain()))
    assert event_from_wire(events[0]).kind is kind
    assert event_from_wire(events[0]).data["occurrence"] == "kv@1"
    told = status_from_wire(statuses[0])
    assert told.evidence is not None
    assert told.evidence.requests == ("r1",)


def test_an_armed_order_is_a_status_only() -> None:
    """Nothing has happened yet."""
    outbox = Outbox("a")
    outbox.report(OrderStatus("kv@1", "armed"))
    events, statuses = outbox.drain()
    assert events == []
    assert statuses[0]["state"] == "armed"


def test_what_was_sent_is_not_sent_again_and_the_sender_is_woken_for_new() -> None:
    """`filled` is the sender's alarm clock."""
    outbox = Outbox("a")
    outbox.emit(Event(EventKind.DEGRADED, 5, "a"))
    assert outbox.filled.is_set()
    assert len(outbox.drain()[0]) == 1
    assert not outbox.filled.is_set()
    assert outbox.drain() == ([], [])
