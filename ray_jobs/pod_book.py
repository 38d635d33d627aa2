"""Faults on pods as the run itself carries them out: orders, statuses, and who serves instead."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from tocsin.chaos.pod_striker import PodStriker
from tocsin.core.clock import SystemClock
from tocsin.core.faulting import Order, OrderStatus
from tocsin.core.pods import Pods
from tocsin.ray_jobs.strike_book import FollowedStrikes

_LOOK_EVERY_S = 1.0
"""The API server is asked for pods this often while one is away."""

Heard = Mapping[str, Mapping[str, Any]]


class PodBook(FollowedStrikes):
    """Strikes pods and follows them; safe to use from several threads.

    Args:
        tell: hears every change of an order's state, and the replica that it is about.
        heard: last heartbeats by replica.
    """

    def __init__(
        self,
        pods: Pods,
        tell: Callable[[OrderStatus, str], None],
        heard: Callable[[], Heard],
    ) -> None:
        """Nothing is struck yet."""
        self._tell, self._heard = tell, heard
        self._replicas: dict[str, str] = {}
        self._striker = PodStriker(SystemClock(), self._report, pods)
        super().__init__(self._striker)
        self._looked_s = 0.0

    def strike(self, order: Order, replica: str, heard: Mapping[str, Any]) -> None:
        """Carry out an order on the pod of a replica, now."""
        self._replicas[order.occurrence] = replica
        known = set(self._heard())

        def replaced() -> bool:
            return any(
                name not in known and one["alive"] and not one["stalled"] and one["step"] > 0
                for name, one in self._heard().items()
            )

        with self._lock:
            self._striker.strike(order, str(heard.get("host", "")), replaced)

    def _look(self) -> None:
        """The pods are only looked at now and then."""
        if self._replicas and time.monotonic() - self._looked_s >= _LOOK_EVERY_S:
            self._looked_s = time.monotonic()
            super()._look()

    def _report(self, status: OrderStatus) -> None:
        self._tell(status, self._replicas.get(status.occurrence, ""))
