"""The life of occurrences: due → intent on disk → ordered → fired → seen → healed.

Occurrences of one replica follow one another, each after the one before is healed and had its time
to be seen, so that an alarm can be told to belong to it. That spacing is done here and not in the
plan: taking one fault out of an experiment leaves the plan of the others as it was.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tocsin.chaos.case import OccurrenceRecord
from tocsin.chaos.clients import Acted, act
from tocsin.chaos.fleet import Fleet, Place
from tocsin.chaos.load import Load
from tocsin.chaos.plan import Occurrence, Plan
from tocsin.chaos.process import look
from tocsin.chaos.spec import Experiment
from tocsin.chaos.wal import WriteAheadLog
from tocsin.chaos.watch import Watch
from tocsin.core.clock import Clock
from tocsin.core.errors import TocsinError
from tocsin.core.faulting import Order, OrderStatus, Scope
from tocsin.core.system import System

_LOOKAHEAD_STEPS = 12
_ORDERS_MOST = 3
_PROCESS_HEAL_S = 45.0
_SETTLE_NS = 300_000_000
_WAIT_FOR_REPLICA_NS = 15_000_000_000


@dataclass(slots=True)
class Dispatcher:
    """Orders what is due and follows every order to its end; driven by `tick`."""

    spec: Experiment
    plan: Plan
    system: System
    clock: Clock
    log: WriteAheadLog
    fleet: Fleet
    watch: Watch
    load: Load
    facts: Mapping[str, Any]
    say: Callable[[str], None]
    records: list[OccurrenceRecord] = field(default_factory=list)
    _clients: dict[str, asyncio.Task[Acted]] = field(default_factory=dict)
    _dead_since: dict[int, int] = field(default_factory=dict)
    _taken_back: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Nothing is ordered yet."""
        self.records = [OccurrenceRecord(planned=one) for one in self.plan.occurrences]

    @property
    def finished(self) -> bool:
        """Every occurrence has come to its end and had its time to be seen."""
        return all(record.settled and not self._busy(record) for record in self.records)

    @property
    def active(self) -> list[OccurrenceRecord]:
        """Ordered, and not yet at their end."""
        return [record for record in self.records if record.ordered_ns and not record.settled]

    async def tick(self) -> None:
        """Look at replicas and orders, follow what happened, order what is due and allowed."""
        self.fleet.update(await asyncio.to_thread(self.system.replicas))
        for index, place in enumerate(self.fleet.places):
            if place.alive:
                self._dead_since.pop(index, None)
            else:
                self._dead_since.setdefault(index, self.clock.now_ns())
        await self.follow()
        due = [one for one in self.records if one.state == "planned" and self._due(one)]
        # One that must be alone needs all others over: while it waits, no other one begins.
        due.sort(key=lambda one: not one.planned.scope.alone)
        waits = False
        for record in due:
            if waits and not record.planned.scope.alone:
                continue
            target = self._target(record)
            if target is not None:
                await self._order(record, target)
            elif record.planned.scope.alone:  # and others are in the way, not where replicas are
                waits = waits or any(self._busy(one) for one in self.records)

    async def follow(self) -> None:
        """Take in what the targets say of their orders."""
        statuses = await asyncio.to_thread(self.system.orders)
        for record in self.records:
            if not record.ordered_ns or record.planned.scope is Scope.CLIENT:
                continue
            status = statuses.get(record.planned.id)
            if status is not None:
                self._absorb(record, status)
            if not record.settled:
                await self._mind(record)
        for name, task in list(self._clients.items()):
            if task.done():
                self._absorb_client(self._record(name), task.result())
                del self._clients[name]

    async def heal_all(self, timeout_s: float) -> None:
        """Take every open order back and wait until each is at its end, or time is up."""
        deadline_ns = self.clock.now_ns() + int(timeout_s * 1e9)
        while True:
            # First of all: a system whose readings raise may still take its orders back.
            for record in self.active:
                if record.planned.scope is not Scope.CLIENT:
                    await self._take_back(record)
            await self.follow()
            left = [one for one in self.active if one.planned.scope is not Scope.CLIENT]
            if not left and not self._clients:
                return
            if self.clock.now_ns() >= deadline_ns:
                for record in left:
                    record.error = record.error or f"its target told nothing in {timeout_s:g} s"
                return
            await asyncio.sleep(0.1)

    async def renew(self) -> None:
        """Renew every lease; the log notes it, so that `heal` knows when the last one began."""
        await asyncio.to_thread(self.system.renew, self.spec.safety.ttl_s)
        self.log.write({"type": "renew", "wall_s": self.clock.wall_s()}, sync=False)

    def _record(self, occurrence: str) -> OccurrenceRecord:
        return next(record for record in self.records if record.planned.id == occurrence)

    def _due(self, record: OccurrenceRecord) -> bool:
        one = record.planned
        if one.clock == "request":
            return self.load.sent >= one.at
        return self.fleet.place(one.replica).progress + _LOOKAHEAD_STEPS >= one.at

    def _busy(self, record: OccurrenceRecord) -> bool:
        """Whether its place is still taken: it is active, or not yet seen and may still be."""
        if not record.ordered_ns:
            return False
        if not record.settled:
            return True
        if not record.fired:
            return False
        now_ns = self.clock.now_ns()
        if now_ns < record.healed_ns + _SETTLE_NS:
            return True
        within_ns = int(record.planned.expect.within_s * 1e9)
        return not self.watch.seen(record) and now_ns < record.fired_ns + within_ns

    def _target(self, record: OccurrenceRecord) -> Place | None:
        """Where it may be ordered now; None: not yet."""
        scope = record.planned.scope
        busy = [one for one in self.records if self._busy(one)]
        if not self._has_room(scope, busy):
            return None
        if scope.aimless:
            return Place(str(scope))
        index = record.planned.replica % len(self.fleet.places)
        place = self.fleet.places[index]
        if not place.alive or record.retargeted_from:
            others = self.fleet.alive()
            now_ns = self.clock.now_ns()
            waited = now_ns - self._dead_since.get(index, now_ns) > _WAIT_FOR_REPLICA_NS
            if not others or not (waited or record.retargeted_from):
                return None
            record.retargeted_from = record.retargeted_from or place.replica
            place = others[0]
        return place if self._allowed(scope, place, busy) else None

    def _has_room(self, scope: Scope, busy: list[OccurrenceRecord]) -> bool:
        """Whether safety lets one more fault of this scope begin beside those, wherever it acts."""
        if len(busy) >= self.spec.safety.max_concurrent_faults:
            return False
        if busy and (scope.alone or any(one.planned.scope.alone for one in busy)):
            return False
        return scope is not Scope.SIDE or all(one.planned.scope is not scope for one in busy)

    def _allowed(self, scope: Scope, place: Place, busy: list[OccurrenceRecord]) -> bool:
        """Whether safety lets one more fault begin on this replica."""
        struck = {one.replica for one in busy if not one.planned.scope.aimless}
        if place.replica in struck:
            return False
        if len(struck) + 1 > self.spec.safety.max_targets * len(self.fleet.places):
            return False
        if scope.takes_replica:
            others = [one for one in self.fleet.alive() if one.replica != place.replica]
            # With a node go all replicas that are on it.
            healthy = [one for one in others if scope is not Scope.NODE or one.node != place.node]
            return len(healthy) >= self.spec.safety.keep_alive
        return True

    async def _order(self, record: OccurrenceRecord, place: Place) -> None:
        """Write the intent, then give the order.

        Raises:
            OSError: the intent could not be written; then nothing was injected.
        """
        one = record.planned
        record.orders += 1
        reading = look(place.pid) if place.pid else None
        intent = {
            "type": "intent",
            "occurrence": one.id,
            "kind": one.kind,
            "scope": str(one.scope),
            "replica": place.replica,
            "pid": place.pid,
            "started_ticks": reading.started_ticks if reading else -1,
            "ttl_s": max(self.spec.safety.ttl_s, _lasts_s(one)),
            "wall_s": self.clock.wall_s(),
        }
        await asyncio.to_thread(self.log.write, intent)
        record.replica = place.replica
        record.ordered_ns = self.clock.now_ns()
        record.state = "ordered"
        self.say(f"{one.id}: {one.kind} on {place.replica}")
        if one.scope is Scope.CLIENT:
            self._clients[one.id] = asyncio.create_task(act(one, self.load, self.facts))
            return
        ahead = max(0, one.at - place.progress) if one.clock == "decode_step" else 0
        order = Order(
            occurrence=one.id,
            kind=one.kind,
            seed=one.seed,
            after_step=place.step + ahead,
            ttl_s=self.spec.safety.ttl_s,
            params=dict(one.params),
        )
        give = self.system.strike if one.scope.outside else self.system.arm
        try:
            await asyncio.to_thread(give, place.replica, order)
        except (TocsinError, OSError) as error:
            record.error = str(error)
            # The order may have got through all the same, and only its answer have been lost.
            if await self._take_back(record):
                self._settle(record, "disarmed")

    def _absorb(self, record: OccurrenceRecord, status: OrderStatus) -> None:
        """Take in what a target says of its order."""
        if record.settled and record.state == status.state:
            return
        record.error = status.error or record.error
        record.evidence = status.evidence or record.evidence
        if status.fired_ns and not record.fired_ns:
            record.fired_ns, record.fired_step = status.fired_ns, status.fired_step
            self.log.write(
                {
                    "type": "fired",
                    "occurrence": record.planned.id,
                    "place": record.evidence.place if record.evidence else "",
                    "wall_s": self.clock.wall_s(),
                }
            )
        if status.state in ("healed", "unhealed", "expired", "disarmed"):
            record.healed_ns = status.healed_ns
            self._settle(record, status.state)
        elif not record.settled:
            record.state = status.state

    def _absorb_client(self, record: OccurrenceRecord, acted: Acted) -> None:
        """A fault of the clients has run its course, its heal included."""
        record.evidence, record.error = acted.evidence, acted.error
        record.fired_ns, record.healed_ns = acted.fired_ns, acted.healed_ns
        record.seen_ns = acted.seen_ns
        self._settle(record, acted.state)

    def _settle(self, record: OccurrenceRecord, state: str) -> None:
        record.state = state
        self.log.write(
            {
                "type": "settled",
                "occurrence": record.planned.id,
                "state": state,
                "error": record.error,
                "wall_s": self.clock.wall_s(),
            }
        )

    async def _mind(self, record: OccurrenceRecord) -> None:
        """Look after an order that is open: its target died, or it stays for too long."""
        one = record.planned
        if one.scope is Scope.WORKER and not self.fleet.is_alive(record.replica):
            if record.fired:
                record.healed_ns = self.clock.now_ns()
                record.error = "its process ended, and the fault with it"
                self._settle(record, "healed")
            elif record.orders < _ORDERS_MOST:
                self.say(f"{one.id}: {record.replica} died before it fired; aimed at another one")
                record.retargeted_from = record.replica
                record.state, record.ordered_ns, record.replica = "planned", 0, ""
            return
        if not record.fired:
            return
        held_s = one.expect.within_s
        if one.scope.outside:
            held_s = max(_PROCESS_HEAL_S, 2 * one.expect.recover_within_s)
        if self.clock.now_ns() > record.fired_ns + int(held_s * 1e9):
            await self._take_back(record)

    async def _take_back(self, record: OccurrenceRecord) -> bool:
        """Whether its target was told to, now or before; if not, it is asked again later."""
        if record.planned.id in self._taken_back:
            return True
        try:
            await asyncio.to_thread(self.system.disarm, record.planned.id)
        except (TocsinError, OSError) as error:
            record.error = record.error or f"disarm: {error}"
            return False
        self._taken_back.add(record.planned.id)
        return True


def _lasts_s(one: Occurrence) -> float:
    """How long a fault that is aimed at no process may stay without anybody to renew its lease."""
    lasts_s = one.params.get("duration_s", 0.0) if one.scope.outside and one.scope.aimless else 0.0
    return float(lasts_s) if isinstance(lasts_s, int | float) else 0.0
