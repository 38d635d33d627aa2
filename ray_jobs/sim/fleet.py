"""The simulated replicas together: births, deaths, stalls, and the log of all that they tell."""

import asyncio
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from tocsin.core.clock import Clock
from tocsin.core.draw import draw_below
from tocsin.core.faulting import OrderStatus
from tocsin.core.history import Event, EventKind
from tocsin.ray_jobs.sim.core import Core, Report, Sink
from tocsin.ray_jobs.sim.replica import Pace, Replica

_WATCH_S = 0.1
_STALE_NS = 1_200_000_000
_DIED_LATELY_NS = 5_000_000_000
_TOLD = {
    "fired": EventKind.FAULT_FIRED,
    "healed": EventKind.FAULT_HEALED,
    "unhealed": EventKind.FAULT_HEALED,
    "expired": EventKind.FAULT_DISARMED,
    "disarmed": EventKind.FAULT_DISARMED,
}

Build = Callable[[Sink, Report], Core]
"""Makes what one replica steps, with where its events and its orders' statuses go."""


@dataclass(slots=True)
class Fleet:
    """All replicas ever born, in that order; one that dies is replaced on its node.

    Attributes:
        events: everything that was told, the event log of the board.
        statuses: the last word on each order.
    """

    wanted: int
    build: Build
    clock: Clock
    pace: Pace
    seed: int
    replicas: dict[str, Replica] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    statuses: dict[str, OrderStatus] = field(default_factory=dict)
    _stalled: set[str] = field(default_factory=set)
    _died_ns: int = -_DIED_LATELY_NS
    _watching: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Every node gets its replica; a loop must run."""
        for node in range(self.wanted):
            self._bear(f"node-{node}")
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    def stop(self) -> None:
        """The run is over."""
        if self._watching is not None:
            self._watching.cancel()
        for one in self.living():
            one.stop()

    def living(self) -> list[Replica]:
        """Those that have not died."""
        return [one for one in self.replicas.values() if one.alive]

    def choose(self, request_id: str) -> Replica | None:
        """Of two that are drawn, the one with less to do, as Ray Serve does it; None: all died."""
        living = self.living()
        if not living:
            return None
        two = [living[draw_below(len(living), self.seed, "route", request_id, n)] for n in (0, 1)]
        return min(two, key=lambda one: one.ongoing)

    def is_stale(self, replica: str | None) -> bool:
        """Whether nothing is to be waited for from a replica; None: nobody has taken it yet."""
        if replica is None:
            lately = self.clock.now_ns() - self._died_ns < _DIED_LATELY_NS
            return bool(self._stalled) or lately
        one = self.replicas.get(replica)
        return one is None or not one.alive or replica in self._stalled

    def lost(self, replica: str, why: str) -> None:
        """A replica ends: it is told as soon as somebody looks, and a successor comes up."""
        one = self.replicas[replica]
        if not one.alive:
            return
        one.die()
        self._stalled.discard(replica)
        loop = asyncio.get_running_loop()
        seen_s = self.pace.drawn(_WATCH_S, self.seed, replica, "seen")
        loop.call_later(seen_s, partial(self._mourn, replica, why))
        restart_s = self.pace.drawn(self.pace.restart_s, self.seed, replica, "restart")
        loop.call_later(restart_s, partial(self._bear, one.node))

    def tell(self, event: Event) -> None:
        """Into the log."""
        self.events.append(event)

    def note(self, kind: EventKind, replica: str, data: dict[str, Any]) -> None:
        """Something that is known of a replica from outside it."""
        told = {**data, "replica": replica}
        self.tell(Event(kind, self.clock.now_ns(), replica, data=told))

    def report(self, replica: str, status: OrderStatus) -> None:
        """A change of an order's state; it is an event as well."""
        self.statuses[status.occurrence] = status
        kind = _TOLD.get(status.state)
        if kind is not None:
            data = {**asdict(status), "replica": replica}
            self.tell(Event(kind, self.clock.now_ns(), replica, status.fired_step, data=data))

    def _bear(self, node: str) -> None:
        name = f"replica-{len(self.replicas)}"
        core = self.build(Sink(name, self.tell), partial(self.report, name))
        one = Replica(name, node, core, self.clock, self.pace, self.seed, self.lost)
        self.replicas[name] = one
        one.start()
        self.note(EventKind.REPLICA_UP, name, {"pid": 0, "node": node})

    def _mourn(self, replica: str, why: str) -> None:
        self._died_ns = self.clock.now_ns()
        self.note(EventKind.REPLICA_DOWN, replica, {"why": why, "pid": 0})

    async def _watch(self) -> None:
        """Who was not heard of for too long is stalled, until it is heard of again."""
        while True:
            await asyncio.sleep(_WATCH_S)
            now_ns = self.clock.now_ns()
            for one in self.living():
                silent_ns = now_ns - one.heard_ns
                if silent_ns > _STALE_NS and one.name not in self._stalled:
                    self._stalled.add(one.name)
                    silent_s = round(silent_ns / 1e9, 3)
                    self.note(EventKind.REPLICA_STALLED, one.name, {"silent_s": silent_s})
                elif silent_ns <= _STALE_NS and one.name in self._stalled:
                    self._stalled.discard(one.name)
                    self.note(EventKind.REPLICA_RESUMED, one.name, {})
