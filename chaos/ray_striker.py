"""Faults on Ray itself: the order book of the chaos actor of the head."""

from collections.abc import Callable

from tocsin.chaos.contract import Fault, RayTarget
from tocsin.chaos.ray_session import RaySession
from tocsin.chaos.strikes import Strikes
from tocsin.core.faulting import Order, OrderStatus, Scope


class RayStriker(Strikes):
    """Carries out CLUSTER and NODE orders at once; ticked, it sees them heal or heals them."""

    def strike(
        self,
        order: Order,
        session: Callable[[], RaySession],
        node: str = "",
        replacement: Callable[[], int | None] | None = None,
    ) -> OrderStatus:
        """Carry out an order now; an occurrence is struck once.

        Args:
            session: finds Ray's own processes.
            node: id of the node that it is aimed at; empty: the whole cluster.
            replacement: as for a process.
        """
        return self._strike(order, lambda: self._aim(order, session, node, replacement))

    def _aim(
        self,
        order: Order,
        session: Callable[[], RaySession],
        node: str,
        replacement: Callable[[], int | None] | None,
    ) -> tuple[Fault, RayTarget]:
        """The fault and its target, or why not."""
        fault = self._fault(order, Scope.NODE if node else Scope.CLUSTER)
        params = fault.resolve(order.params)
        return fault, RayTarget(session(), node, params, order.seed, self._clock, replacement)
