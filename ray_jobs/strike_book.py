"""Orders that the run's own process carries out itself, from whatever thread they come."""

import threading

from tocsin.chaos.road_striker import RoadStriker
from tocsin.chaos.side import SideStriker
from tocsin.chaos.strikes import Strikes
from tocsin.core.faulting import Order, OrderStatus


class FollowedStrikes:
    """A striker behind a lock: lease, statuses and heals come from several threads."""

    def __init__(self, striker: Strikes) -> None:
        """Nothing is struck yet."""
        self._strikes = striker
        self._lock = threading.Lock()

    def statuses(self) -> dict[str, OrderStatus]:
        """Where each order stands; they are looked after here."""
        with self._lock:
            self._look()
            return {one.occurrence: one for one in self._strikes.statuses()}

    def renew(self, ttl_s: float) -> None:
        """The run goes on."""
        with self._lock:
            self._strikes.renew(ttl_s)

    def disarm(self, occurrence: str) -> None:
        """Take an order back, or see whether what it did is over where that is all one can do."""
        with self._lock:
            self._strikes.disarm(occurrence)

    def _look(self) -> None:
        self._strikes.tick()


class StrikeBook(FollowedStrikes):
    """The same for strikers that need nothing but the order."""

    def __init__(self, striker: RoadStriker | SideStriker) -> None:
        """Nothing is struck yet."""
        super().__init__(striker)
        self._striker = striker

    def strike(self, order: Order) -> None:
        """Carry out an order, now."""
        with self._lock:
            self._striker.strike(order)
