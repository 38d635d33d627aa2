"""A bounded queue and its thread: who fills it never waits, and what is lost is counted."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")

_PAUSE_S_MIN = 1.0
_PAUSE_S_MAX = 60.0


class Delivery(Generic[Item]):
    """Delivers items in batches; a receiver that fails is left alone for a while, then longer.

    Args:
        deliver: takes a batch; False: it is lost. Runs on the thread, and may take its time.
        name: of the thread.
        items_max: waiting items; further ones are dropped and counted.
        batch_max: items handed over at once.
    """

    def __init__(
        self,
        deliver: Callable[[Sequence[Item]], bool],
        *,
        name: str,
        items_max: int,
        batch_max: int = 64,
    ) -> None:
        """The thread starts with the first item: a process without traces has none."""
        self.delivered = self.dropped = self.failed = 0
        self._deliver = deliver
        self._name = name
        self._items_max = items_max
        self._batch_max = batch_max
        self._items: deque[Item] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._busy = False
        self._thread: threading.Thread | None = None
        self._pause_s = 0.0

    def offer(self, item: Item) -> None:
        """Take an item along, or drop it; never waits for the receiver."""
        with self._wake:
            if self._closing or len(self._items) >= self._items_max:
                self.dropped += 1
                return
            self._items.append(item)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._wake.notify()

    def flush(self, timeout_s: float) -> bool:
        """Wait until all that was taken is delivered or lost; whether that came in time."""
        with self._wake:
            return self._wake.wait_for(lambda: not self._items and not self._busy, timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Take no more, deliver what waits, end the thread; whether that came in time.

        What is not delivered by then is counted as dropped.
        """
        with self._wake:
            self._closing = True
            self._wake.notify_all()
            done = self._wake.wait_for(lambda: not self._items and not self._busy, timeout_s)
            self.dropped += len(self._items)
            self._items.clear()
        return done

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._items or self._closing)
                if self._pause_s and not self._closing:
                    self._wake.wait_for(lambda: self._closing, self._pause_s)
                batch = [
                    self._items.popleft() for _ in range(min(len(self._items), self._batch_max))
                ]
                if not batch:
                    return  # closing, and nothing is left
                self._busy = True
            taken = self._deliver(batch)
            with self._wake:
                self._count(len(batch), taken=taken)
                self._busy = False
                self._wake.notify_all()

    def _count(self, items: int, *, taken: bool) -> None:
        if taken:
            self.delivered += items
            self._pause_s = 0.0
            return
        self.failed += items
        self._pause_s = min(max(2 * self._pause_s, _PAUSE_S_MIN), _PAUSE_S_MAX)
