"""Faults on the road between a load and a service: what they share, and their order book."""

from collections.abc import Callable

from tocsin.chaos.contract import Fault, RoadTarget
from tocsin.chaos.road import Passage
from tocsin.chaos.road_thread import RoadThread
from tocsin.chaos.strikes import Report, Strikes
from tocsin.chaos.toxin import Toxin
from tocsin.core.clock import Clock
from tocsin.core.faulting import Evidence, Order, OrderStatus, Scope

NETWORK = str(Scope.NETWORK)
"""Whom an alarm of the road is about."""

_SEEN_WITHIN_S = 3.0
_POLL_S = 0.02


def put(
    target: RoadTarget, toxin: Toxin, duration_s: float, count: str, *, half_open: bool = False
) -> Evidence:
    """Put a toxin in force and wait until it has met bytes; where it meets none it is taken back.

    Args:
        count: name in `Passage` of the bytes that show it.
        half_open: take the service's end of every connection in use away as well.
    """
    before = _words(target.road.reading(), count)
    target.road.put(toxin, duration_s)
    if half_open:
        target.road.cut(1.0, target.seed, half_open=True)
    after = seen(target, lambda: _words(target.road.reading(), count), before)
    if after == before:
        target.road.clear()
    return Evidence(place=f"the road to {target.road.service}", before=before, after=after)


def clear(target: RoadTarget) -> None:
    """End what is in force."""
    target.road.clear()


def is_clear(target: RoadTarget) -> bool:
    """Whether nothing is in force."""
    return target.road.is_clear()


def seen(target: RoadTarget, look: Callable[[], str], before: str) -> str:
    """The first look that differs from `before`, or the last one when time is up."""
    deadline_ns = target.clock.now_ns() + int(_SEEN_WITHIN_S * 1e9)
    words = look()
    while words == before and target.clock.now_ns() < deadline_ns:
        target.clock.sleep(_POLL_S)
        words = look()
    return words


def _words(reading: Passage, count: str) -> str:
    """`1234 bytes were late`."""
    return f"{getattr(reading, count)} bytes were {count}"


class RoadStriker(Strikes):
    """Carries out NETWORK orders on one road."""

    def __init__(self, clock: Clock, report: Report, road: RoadThread) -> None:
        """Nothing is struck yet."""
        super().__init__(clock, report)
        self._road = road

    def strike(self, order: Order) -> OrderStatus:
        """Carry out an order now; an occurrence is struck once."""
        return self._strike(order, lambda: self._aim(order))

    def _aim(self, order: Order) -> tuple[Fault, RoadTarget]:
        """The fault and the road.

        Raises:
            SpecError: it is no fault on the network, or it has no such parameter.
        """
        fault = self._fault(order, Scope.NETWORK)
        return fault, RoadTarget(self._road, fault.resolve(order.params), order.seed, self._clock)
