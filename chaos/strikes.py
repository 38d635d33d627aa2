"""Orders that are carried out at once on something outside this process, and how each one ends."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tocsin.chaos.contract import Fault, faults
from tocsin.core.clock import Clock
from tocsin.core.errors import SpecError, TocsinError
from tocsin.core.faulting import Order, OrderStatus, Scope

Report = Callable[[OrderStatus], None]
Aim = Callable[[], tuple[Fault, Any]]
"""The fault and its target.

Raises:
    SpecError: there is no such target.
"""


@dataclass(slots=True)
class _Struck:
    """One order that was carried out."""

    fault: Fault
    target: Any
    status: OrderStatus
    deadline_ns: int


class Strikes:
    """The book of one striker; ticked, it sees faults heal or heals those whose lease ran out."""

    def __init__(self, clock: Clock, report: Report) -> None:
        """Nothing is struck yet; `report` hears of every change of an order's state."""
        self._clock = clock
        self._report = report
        self._struck: dict[str, _Struck] = {}
        self._taken_back: set[str] = set()

    def tick(self) -> None:
        """See which faults have healed; heal those whose lease ran out."""
        for struck in self._struck.values():
            if struck.status.state != "fired":
                continue
            if self._is_healed(struck):
                self._settle(struck, "healed")
            elif self._clock.now_ns() >= struck.deadline_ns:
                self._heal(struck)

    def renew(self, ttl_s: float) -> None:
        """The controller is alive: every lease begins anew."""
        for struck in self._struck.values():
            struck.deadline_ns = self._clock.now_ns() + int(ttl_s * 1e9)

    def disarm(self, occurrence: str) -> None:
        """Heal what an order did; one that comes only now is not carried out any more."""
        self._taken_back.add(occurrence)
        struck = self._struck.get(occurrence)
        if struck is not None and struck.status.state in ("fired", "unhealed"):
            self._heal(struck)

    def statuses(self) -> tuple[OrderStatus, ...]:
        """Where every order stands, in the order of their arrival."""
        return tuple(struck.status for struck in self._struck.values())

    def _strike(self, order: Order, aim: Aim) -> OrderStatus:
        """Carry an order out now; an occurrence is struck once."""
        if order.occurrence in self._struck:
            return self._struck[order.occurrence].status
        try:
            if os.environ.get("CHAOS_DISABLE") == "1":
                raise SpecError(f"{order.occurrence}: CHAOS_DISABLE is 1; unset it to allow chaos")
            if order.occurrence in self._taken_back:
                raise SpecError(f"{order.occurrence}: was taken back before it was carried out")
            fault, target = aim()
        except TocsinError as error:
            status = OrderStatus(order.occurrence, "disarmed", error=str(error))
            self._report(status)
            return status
        deadline_ns = self._clock.now_ns() + int(order.ttl_s * 1e9)
        armed = OrderStatus(order.occurrence, "armed")
        struck = _Struck(fault, target, armed, deadline_ns)
        self._struck[order.occurrence] = struck
        self._carry_out(struck)
        return struck.status

    def _fault(self, order: Order, scope: Scope) -> Fault:
        """The fault of an order.

        Raises:
            SpecError: it is none of this scope.
        """
        fault = faults().get(order.kind)
        if fault is None or fault.scope is not scope:
            raise SpecError(
                f"{order.occurrence}: {order.kind} is no fault on {_WHAT[scope]}; "
                f"known are {[one.id for one in faults().values() if one.scope is scope]}"
            )
        return fault

    def _carry_out(self, struck: _Struck) -> None:
        occurrence = struck.status.occurrence
        try:
            evidence = struck.fault.inject(struck.target)
        except (OSError, TocsinError, ValueError, TypeError) as error:
            struck.status = OrderStatus(occurrence, "disarmed", error=f"{struck.fault.id}: {error}")
        else:
            struck.status = OrderStatus(
                occurrence,
                "fired" if evidence.fired else "disarmed",
                evidence=evidence,
                fired_ns=self._clock.now_ns() if evidence.fired else 0,
                error="" if evidence.fired else f"{evidence.place}: still reads {evidence.after}",
            )
        self._report(struck.status)

    def _heal(self, struck: _Struck) -> None:
        error = ""
        if struck.fault.heal_with is not None and not self._is_healed(struck):
            try:
                struck.fault.heal_with(struck.target)
            except (OSError, TocsinError) as failure:
                error = f"{struck.fault.id}: heal: {failure}"
        self._settle(struck, "healed" if self._is_healed(struck) else "unhealed", error)

    def _is_healed(self, struck: _Struck) -> bool:
        verify = struck.fault.verify_heal_with
        try:
            return verify is None or verify(struck.target)
        except TocsinError:  # it cannot be looked at now: not shown to be healed
            return False

    def _settle(self, struck: _Struck, state: str, error: str = "") -> None:
        before = struck.status
        healed_ns = self._clock.now_ns() if state == "healed" else 0
        struck.status = OrderStatus(
            before.occurrence,
            state,
            before.evidence,
            before.fired_ns,
            before.fired_step,
            healed_ns,
            error,
        )
        if struck.status != before:
            self._report(struck.status)


_WHAT = {
    Scope.PROCESS: "processes",
    Scope.POD: "pods",
    Scope.NODE: "Ray nodes",
    Scope.CLUSTER: "Ray itself",
    Scope.NETWORK: "the network",
    Scope.SIDE: "what is beside the replicas",
}
