"""The queue between those who serve and those who write: bounded, counted, ended in time."""

import threading
import time
from collections.abc import Sequence

import pytest

from tocsin.ray_jobs.tracing import delivery
from tocsin.ray_jobs.tracing.delivery import Delivery


class Receiver:
    """Takes items when it is let, and says no when told to."""

    def __init__(self) -> None:
        self.items: list[int] = []
        self.calls = 0
        self.takes = True
        self.open = threading.Event()
        self.open.set()

    def deliver(self, items: Sequence[int]) -> bool:
        self.calls += 1
        self.open.wait(30.0)
        if self.takes:
            self.items.extend(items)
        return self.takes


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


def made(receiver: Receiver, items_max: int = 10_000) -> Delivery[int]:
    return Delivery(receiver.deliver, name="test", items_max=items_max, batch_max=8)


def test_what_is_offered_arrives_in_order_and_in_batches(receiver: Receiver) -> None:
    """Each item once."""
    receiver.open.clear()
    sending = made(receiver)
    for number in range(100):
        sending.offer(number)
    receiver.open.set()
    assert sending.flush(10.0)
    assert receiver.items == list(range(100))
    assert receiver.calls <= 1 + 100 // 8 + 1
    assert (sending.delivered, sending.dropped, sending.failed) == (100, 0, 0)
    assert sending.close(10.0)


def test_a_full_queue_drops_the_new_and_counts_them(receiver: Receiver) -> None:
    """Whoever offers does not wait, and every item is accounted for."""
    receiver.open.clear()
    sending = made(receiver, items_max=50)
    began_s = time.monotonic()
    for number in range(5000):
        sending.offer(number)
    assert time.monotonic() - began_s < 1.0
    receiver.open.set()
    assert sending.flush(10.0)
    assert sending.delivered + sending.dropped == 5000
    assert 50 <= sending.delivered <= 58
    sending.close(10.0)


def test_the_end_is_bounded_and_what_is_left_is_counted(receiver: Receiver) -> None:
    """A receiver that hangs does not keep a process from ending."""
    receiver.open.clear()
    sending = made(receiver)
    for number in range(100):
        sending.offer(number)
    began_s = time.monotonic()
    assert not sending.close(0.2)
    assert time.monotonic() - began_s < 2.0
    assert sending.dropped >= 100 - 8
    sending.offer(1)
    assert sending.dropped >= 101 - 8
    receiver.open.set()


def test_a_receiver_that_fails_is_left_alone_for_a_while(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second at first; the end does not wait for the pause."""
    monkeypatch.setattr(delivery, "_PAUSE_S_MIN", 30.0)
    receiver.takes = False
    sending = made(receiver)
    sending.offer(1)
    assert sending.flush(10.0)
    for number in range(100):
        sending.offer(number)
    assert not sending.flush(0.1)
    assert receiver.calls == 1
    receiver.takes = True
    assert sending.close(10.0)
    assert (sending.failed, sending.delivered) == (1, 100)


def test_nobody_offers_nobody_runs(receiver: Receiver) -> None:
    """No thread for a process without traces, and its end is immediate."""
    before = threading.active_count()
    assert made(receiver).close(10.0)
    assert threading.active_count() == before
