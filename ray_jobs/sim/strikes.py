"""Faults on whole processes, done to simulated replicas: declared as in earnest, injected here."""

import asyncio
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from tocsin.chaos.contract import Fault, Heal, HealVerify, faults
from tocsin.chaos.strikes import Report, Strikes
from tocsin.core.errors import SpecError
from tocsin.core.faulting import Evidence, Order, OrderStatus, Scope
from tocsin.ray_jobs.sim.fleet import Fleet
from tocsin.ray_jobs.sim.replica import Replica


@dataclass(slots=True)
class SimTarget:
    """What a simulated strike can reach.

    Attributes:
        born: replicas that there ever were when it was aimed.
    """

    fleet: Fleet
    replica: Replica
    params: Mapping[str, Any]
    born: int
    memory: dict[str, Any] = field(default_factory=dict)

    @property
    def state(self) -> str:
        """`runs`, `stands still` or `gone`."""
        if not self.replica.alive:
            return "gone"
        return "stands still" if self.replica.frozen else "runs"


@dataclass(frozen=True, slots=True)
class Strike:
    """How one kind of fault is done to a simulated replica."""

    inject: Callable[[SimTarget], Evidence]
    heal_verify: HealVerify
    heal: Heal | None = None


def _evidence(target: SimTarget, before: str) -> Evidence:
    return Evidence(f"simulated process {target.replica.name}", before, target.state)


def _kill(target: SimTarget) -> Evidence:
    before = target.state
    target.fleet.lost(target.replica.name, "its process is gone")
    return _evidence(target, before)


def _replaced(target: SimTarget) -> bool:
    names = list(target.fleet.replicas)[target.born :]
    return any(target.fleet.replicas[name].alive for name in names)


def _freeze(target: SimTarget) -> Evidence:
    before = target.state
    target.replica.freeze()
    duration_s = float(target.params["duration_s"])
    asyncio.get_running_loop().call_later(duration_s, target.replica.thaw)
    return _evidence(target, before)


def _thaw(target: SimTarget) -> None:
    target.replica.thaw()


def _runs(target: SimTarget) -> bool:
    return not target.replica.frozen


STRIKES: Mapping[str, Strike] = MappingProxyType(
    {
        "actor.kill": Strike(_kill, _replaced),
        "actor.freeze": Strike(_freeze, _runs, _thaw),
        "pod.delete": Strike(_kill, _replaced),
    }
)
"""Kinds of fault that take a replica and can be simulated."""


class SimStriker(Strikes):
    """Strikes simulated replicas, with the leases and the book of the real strikers."""

    def __init__(self, fleet: Fleet, report: Report) -> None:
        """Nothing is struck yet."""
        super().__init__(fleet.clock, report)
        self._fleet = fleet

    def strike(self, order: Order, replica: str) -> OrderStatus:
        """Carry an order out now; an occurrence is struck once."""
        return self._strike(order, lambda: self._aim(order, replica))

    def _aim(self, order: Order, replica: str) -> tuple[Fault, SimTarget]:
        """The fault as it is done here, and its target.

        Raises:
            SpecError: it cannot be simulated, or its target is not there.
        """
        declared, how = faults().get(order.kind), STRIKES.get(order.kind)
        if declared is None or how is None:
            raise SpecError(
                f"{order.occurrence}: {order.kind} cannot be simulated, "
                f"expected one of {sorted(STRIKES)}; run without --sim"
            )
        one = self._fleet.replicas.get(replica)
        if one is None or not one.alive:
            raise SpecError(
                f"{order.occurrence}: found no living replica {replica!r}, expected one; "
                "it died before"
            )
        done_here = replace(
            declared, inject=how.inject, heal_with=how.heal, verify_heal_with=how.heal_verify
        )
        params = declared.resolve(order.params)
        return done_here, SimTarget(self._fleet, one, params, len(self._fleet.replicas))


def why_not_simulated(fault: Fault, *, engine: bool) -> str:
    """Why a kind of fault cannot be injected in simulation; empty: it can.

    Args:
        engine: whether replicas step a real engine.
    """
    if inspect.iscoroutinefunction(fault.inject):
        return "simulated clients have no connections that could be cut, filled or made again"
    if fault.scope is Scope.CLIENT or fault.id in STRIKES:
        return ""
    if fault.scope is Scope.WORKER:
        return "" if engine else "the stub has no operator at which it could act"
    return f"nothing of this process stands for what it acts on ({fault.scope})"
