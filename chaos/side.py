"""Faults beside the replicas: on what serving writes and tells, which it must never wait for."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from tocsin.chaos.contract import Fault, ProcessTarget
from tocsin.chaos.strikes import Report, Strikes
from tocsin.core.clock import Clock
from tocsin.core.errors import SpecError
from tocsin.core.faulting import Evidence, Order, OrderStatus, Scope

SIDE = str(Scope.SIDE)
"""Whom an alarm about it names."""
ALERTS, SPANS = "alerts", "spans"
_SEEN_WITHIN_S = 8.0
_POLL_S = 0.05
_SECONDS_MAX = 120.0


class Receivers(Protocol):
    """Who takes the alerts and the spans of the run's own application; named by what they take."""

    def refuse(self, what: str, seconds: float, *, hang: bool) -> None:
        """From now on, for so long, answer 500, or not at all."""
        ...

    def take(self, what: str) -> None:
        """Take everything again."""
        ...

    def refuses(self, what: str) -> bool:
        """Whether it does now."""
        ...

    def refused(self, what: str) -> int:
        """Messages that it refused so far."""
        ...

    def owed(self) -> int:
        """Alerts that it refused and has not been sent again since."""
        ...


@dataclass(slots=True)
class SideTarget:
    """What a fault beside the replicas can reach, all of it on this machine.

    Attributes:
        hub: the process that serves the node's metrics; None: it is not on this machine.
        metrics_answer: whether a GET of its page is answered within a second.
        workers: serving processes.
        journal: folder of the failures' lines.
        receivers: None: they are not the run's own.
        page: sends an alert that is marked as a drill.
    """

    hub: ProcessTarget | None
    metrics_answer: Callable[[], bool]
    workers: tuple[ProcessTarget, ...]
    journal: str
    params: Mapping[str, Any]
    seed: int
    clock: Clock
    receivers: Receivers | None = None
    page: Callable[[], None] = lambda: None
    memory: dict[str, Any] = field(default_factory=dict)


def refused(
    target: SideTarget, what: str, *, hang: bool, act: Callable[[], None] = lambda: None
) -> Evidence:
    """Have a receiver refuse, and wait until it has; where nothing comes it takes all again.

    Args:
        act: what makes something come.

    Raises:
        SpecError: there is no receiver, or the duration is none.
    """
    receivers, seconds = target.receivers, float(target.params["duration_s"])
    if receivers is None:
        raise SpecError(
            f"the receivers of {what} are not the run's own, expected a run that serves the model "
            "itself; leave --on out"
        )
    if not 0 < seconds <= _SECONDS_MAX:
        raise SpecError(f"duration_s is {seconds}, expected more than 0, {_SECONDS_MAX:g} at most")
    before = receivers.refused(what)
    receivers.refuse(what, seconds, hang=hang)
    act()
    until_ns = target.clock.now_ns() + int(min(seconds, _SEEN_WITHIN_S) * 1e9)
    while receivers.refused(what) == before and target.clock.now_ns() < until_ns:
        target.clock.sleep(_POLL_S)
    after = receivers.refused(what)
    if after == before:
        receivers.take(what)
    how = "not answered" if hang else "answered with 500"
    return Evidence(f"receiver of {what}", f"{before} messages {how}", f"{after} messages {how}")


Around = Callable[[Mapping[str, Any], int], SideTarget]
"""What is there now, for a fault's parameters and seed."""


class SideStriker(Strikes):
    """Carries out SIDE orders of this machine."""

    def __init__(self, clock: Clock, report: Report, around: Around) -> None:
        """Nothing is struck yet."""
        super().__init__(clock, report)
        self._around = around

    def strike(self, order: Order) -> OrderStatus:
        """Carry out an order now; an occurrence is struck once."""
        return self._strike(order, lambda: self._aim(order))

    def _aim(self, order: Order) -> tuple[Fault, SideTarget]:
        """The fault and what is there.

        Raises:
            SpecError: it is no such fault, or it has no such parameter.
        """
        fault = self._fault(order, Scope.SIDE)
        return fault, self._around(fault.resolve(order.params), order.seed)
