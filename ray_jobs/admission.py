"""How many requests are let in: as many as the replicas can hold, the others come again later."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tocsin.core.clock import Clock, SystemClock
from tocsin.core.draw import draw_below
from tocsin.core.errors import CapacityError

WAITING_PER_SLOT = 3
"""So many wait for each slot that serves: with answers alike, the last one waits three answers."""
_WINDOW_S = 10.0
_AFTER_S_MAX = 30


class CrowdedError(CapacityError):
    """There is no room; `retry_after_s` says when to come again, in whole seconds."""

    def __init__(self, message: str, retry_after_s: int) -> None:
        """Say so in words as well."""
        super().__init__(message)
        self.retry_after_s = retry_after_s


@dataclass(slots=True)
class Admission:
    """The door of one gateway.

    Args:
        room: how many requests may be under way together, now.

    Attributes:
        inside: requests under way.
    """

    room: Callable[[], int]
    clock: Clock = field(default_factory=SystemClock)
    inside: int = 0
    _ended_ns: deque[int] = field(default_factory=deque)

    @contextmanager
    def seat(self, request_id: str) -> Iterator[None]:
        """One request is under way while the block lasts.

        Raises:
            CrowdedError: there is no room for it.
        """
        room = self.room()
        if self.inside >= room:
            after_s = self._after_s(request_id)
            raise CrowdedError(
                f"gateway: {self.inside} requests are under way, there is room for {room}; come "
                f"again in {after_s} s",
                after_s,
            )
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1
            self._ended_ns.append(self.clock.now_ns())
            self._forget()

    def _after_s(self, request_id: str) -> int:
        """Time in which all that is inside will have ended, as fast as requests ended lately.

        Drawn by the request from 1 s to that: whoever was turned away at one moment must not come
        again at one moment.
        """
        self._forget()
        per_s = len(self._ended_ns) / _WINDOW_S
        drained_s = self.inside / per_s if per_s else 0.0
        most_s = max(2, min(_AFTER_S_MAX, round(drained_s)))
        return 1 + draw_below(most_s, 0, "retry", request_id)

    def _forget(self) -> None:
        """What ended before the window says nothing any more, and must not pile up."""
        since_ns = self.clock.now_ns() - _WINDOW_S * 1e9
        while self._ended_ns and self._ended_ns[0] < since_ns:
            self._ended_ns.popleft()
