"""Orders that the run's own process carries out itself, from whatever thread they come."""

import threading

from tocsin.chaos.road_striker import RoadStriker
from tocsin.chaos.side import SideStriker
from tocsin.core.faulting import Order, OrderStatus


class StrikeBook:
    """A striker behind a lock: orders, lease and readings come from several threads."""

    def __init__(self, striker: RoadStriker | SideStriker) -> None:
        """Nothing is struck yet."""
        self._striker = striker
        self._lock = threading.Lock()

    def strike(self, order: Order) -> None:
        """Carry out an order, now."""
        with self._lock:
            self._striker.strike(order)

    def statuses(self) -> dict[str, OrderStatus]:
        """Where each order stands; they are looked after here."""
        with self._lock:
            self._striker.tick()
            return {one.occurrence: one for one in self._striker.statuses()}

    def renew(self, ttl_s: float) -> None:
        """The run goes on."""
        with self._lock:
            self._striker.renew(ttl_s)

    def disarm(self, occurrence: str) -> None:
        """Take an order back."""
        with self._lock:
            self._striker.disarm(occurrence)
