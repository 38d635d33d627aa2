"""The board: a named actor that hears every replica's heartbeat and holds what they must do."""

import asyncio
import contextlib
import os
import time
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Any

import ray

from tocsin.core.degrade import p0_reason
from tocsin.core.ids import new_ulid
from tocsin.ray_jobs.actor_death import Inquiry
from tocsin.ray_jobs.clocks import Stamp, Translator, stamp
from tocsin.ray_jobs.control_plane import ControlPlane
from tocsin.ray_jobs.degradations import Degradations
from tocsin.ray_jobs.delivery_meter import delivery_counter
from tocsin.ray_jobs.fleet_window import FleetWindow
from tocsin.ray_jobs.pager import Pager, Paging
from tocsin.ray_jobs.service_meter import incident_counter
from tocsin.ray_jobs.side_watch import SideWatch
from tocsin.ray_jobs.ticks import Tick

BOARD = "tocsin-board"
NAMESPACE = "tocsin"
STALE_S = 1.2
"""A heartbeat older than this makes a replica stalled; they come five times a second."""
STARVED_S = 3.0
"""The same for a process of this machine that is seen to run: it may only be short of CPU."""
GONE_S = 20.0
EVENTS_MAX = 200_000


class Board:
    """Latest heartbeats, the event log, counters of the dead, and desired state by revision.

    Replicas long-poll `poll`: a switch, an order or a lease renewal reaches them in milliseconds,
    and one that was frozen or has just started finds all of it at its first poll. All times are on
    the board's own clock, whatever host they come from.

    Args:
        paging: who is told directly of what pages; None: nobody.
    """

    def __init__(self, paging: Paging | None = None) -> None:
        """Nothing is known yet; Ray calls it again, with the same arguments, after a crash."""
        self._replicas: dict[str, dict[str, Any]] = {}
        self._events: deque[dict[str, Any]] = deque(maxlen=EVENTS_MAX)
        self._dropped = 0
        self._orders: dict[str, dict[str, Any]] = {}
        self._disarmed: set[str] = set()
        self._switches: list[dict[str, Any]] = []
        self._lease = {"serial": 0, "ttl_s": 0.0}
        self._statuses: dict[str, dict[str, Any]] = {}
        self._revision = 0
        self._changed = asyncio.Condition()
        self._stalled: set[str] = set()
        self._node = ""
        self._deployer = ""
        self._life = new_ulid()
        self._clocks = Translator()
        self._watch: asyncio.Task[None] | None = None
        self._hubs: dict[str, dict[str, Any]] = {}
        self._window = FleetWindow()
        self._crossings: list[tuple[str, str]] = []
        self._degradations = Degradations(time.time, time.monotonic)
        self._side = SideWatch(self._note, _state)
        self._pager = _pager(paging, self._side.delivered)
        self._noticed: Callable[[str], None] = _nobody
        self._control: asyncio.Task[None] | None = None
        self._inquiry = Inquiry(lambda replica: self.lost(replica, "Ray has its actor for dead"))

    async def watch(self, paging: Paging | None = None) -> None:
        """Look after heartbeats from now on; said again, only another `paging` changes anything."""
        if not self._node:  # only there can a pid be looked at
            self._node = ray.get_runtime_context().get_node_id()
            self._noticed = incident_counter()
        if paging is not None and paging != self._pager.paging:
            before, self._pager = self._pager, _pager(paging, self._side.delivered)
            await before.close()
        if self._watch is None or self._watch.done():
            self._watch = asyncio.ensure_future(self._watch_for_ever())
        if self._control is None or self._control.done():
            address = ray.get_runtime_context().gcs_address
            self._control = asyncio.ensure_future(ControlPlane(self._note).mind_for_ever(address))

    async def deployed_by(self, job: str) -> None:
        """The Ray job (hex) of the process that ends the application when it ends."""
        self._deployer = job

    async def left_behind(self) -> bool:
        """Whether that process is gone and could not; False for an application that is to stay."""
        if not self._deployer:
            return False
        jobs = ray._private.state.jobs()  # type: ignore[no-untyped-call]
        dead = {job["JobID"]: job["IsDead"] for job in jobs}
        return bool(dead.get(self._deployer, True))  # old jobs fall out of the table

    async def _watch_for_ever(self) -> None:
        while True:
            await asyncio.sleep(0.1)
            self._side.look(time.monotonic())
            for replica, heard in list(self._replicas.items()):
                self._look_at(replica, heard)

    def _look_at(self, replica: str, heard: dict[str, Any]) -> None:
        if not heard["alive"]:
            return
        age_s = time.monotonic() - heard["heard_s"]
        state = _state(heard["pid"]) if heard["node"] == self._node else _UNKNOWN
        patience_s = STARVED_S if state in _RUNS else STALE_S
        if state in _GONE:
            self.lost(replica, "its process is gone")
        elif age_s > GONE_S:
            self.lost(replica, f"silent for {age_s:.0f} s")
        elif age_s > patience_s:
            if replica not in self._stalled:
                self._stalled.add(replica)
                data = {"silent_s": round(age_s, 3), "node": heard["node"]}
                self._note("replica_stalled", replica, data)
            if state == _UNKNOWN and heard.get("actor"):
                self._inquiry.about(replica, heard["actor"])

    def lost(self, replica: str, why: str) -> None:
        """A replica is known to be dead; told once."""
        heard = self._replicas.get(replica)
        if heard is None or not heard["alive"]:
            return
        heard["alive"] = False
        self._stalled.discard(replica)
        data = {"why": why, "pid": heard["pid"], "node": heard["node"]}
        self._note("replica_down", replica, data)

    async def beat(self, replica: str, data: dict[str, Any]) -> None:
        """A heartbeat: pid, node, readings, order statuses and the events since the last one."""
        offset_ns = self._clocks.offset_ns(data.pop("stamp", None))
        known = self._replicas.get(replica)
        if known is None:
            self._note("replica_up", replica, {"pid": data["pid"], "node": data["node"]})
        if replica in self._stalled:
            self._stalled.discard(replica)
            self._note("replica_resumed", replica, {})
        self._side.beat(replica, data.get("counters") or {}, data.pop("spans", {}))
        for event in data.pop("events"):
            self._append(self._clocks.event(event, offset_ns))
        for status in data.pop("statuses"):
            self._statuses[status["occurrence"]] = self._clocks.status(status, offset_ns)
        alive = known["alive"] if known else True
        self._replicas[replica] = {**data, "alive": alive, "heard_s": time.monotonic()}

    async def poll(self, replica: str, revision: int, timeout_s: float = 5.0) -> dict[str, Any]:
        """What a replica must do, as soon as it is newer than `revision` (or after a while).

        Serials and revisions belong to one `life` of the board.
        """
        async with self._changed:
            if self._revision == revision:  # a larger one is of an earlier board
                newer = self._changed.wait_for(lambda: self._revision > revision)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(newer, timeout_s)
        now_s = time.monotonic()
        return {
            "revision": self._revision,
            "life": self._life,
            "orders": [o["order"] for o in self._orders.values() if o["replica"] == replica],
            "disarmed": sorted(self._disarmed),
            "lease": dict(self._lease),
            "switches": [
                {**switch, "left_s": switch["until_s"] - now_s}
                for switch in self._switches
                if switch["until_s"] > now_s
            ],
            "degradations": self._degradations.in_force(),
        }

    async def _change(self) -> None:
        async with self._changed:
            self._revision += 1
            self._changed.notify_all()

    async def arm(self, replica: str, order: dict[str, Any]) -> None:
        """Give an order to a replica; given again, it moves to the new one."""
        self._orders[order["occurrence"]] = {"replica": replica, "order": order}
        self._disarmed.discard(order["occurrence"])
        await self._change()

    async def disarm(self, occurrence: str) -> None:
        """Take an order back."""
        self._disarmed.add(occurrence)
        await self._change()

    async def renew(self, ttl_s: float) -> None:
        """The controller is alive."""
        self._lease = {"serial": self._lease["serial"] + 1, "ttl_s": ttl_s}
        await self._change()

    async def forget_orders(self) -> None:
        """A new run begins: orders of an older one are taken back."""
        self._disarmed |= set(self._orders)
        await self._change()
        self._orders.clear()
        self._statuses.clear()

    async def switch(self, order: dict[str, Any]) -> int:
        """Put a switchboard order in force everywhere; returns its revision."""
        serial = len(self._switches) + 1
        until_s = time.monotonic() + order["ttl_s"]
        self._switches.append({"serial": serial, "order": order, "until_s": until_s})
        await self._change()
        return self._revision

    async def degrade(self, order: dict[str, Any], actor: str = "auto") -> int:
        """Put a degrade order in force everywhere, or take it back; returns the revision."""
        return await self.degrade_all([order], actor)

    async def degrade_all(self, orders: list[dict[str, Any]], actor: str) -> int:
        """Several at once: replicas hear of them together, and each is in the audit log."""
        for order in orders:
            self._note("degrade_ordered", "board", self._degradations.put(order, actor))
        if orders:
            await self._change()
        return self._revision

    def degradations(self) -> dict[str, list[dict[str, Any]]]:
        """Degrade orders in force, and the audit log."""
        return {"orders": self._degradations.in_force(), "audit": self._degradations.audit()}

    async def hub_beat(
        self, node: str, hub: dict[str, Any], ticks: list[tuple[Any, ...]]
    ) -> dict[str, Any]:
        """A hub tells where it serves, and which operators failed on its node and when.

        Returns:
            All hubs by node; the windows of the fleet, for the one hub that shows them.
        """
        self._hubs[node] = hub
        if node == self._node:
            self._side.hub_beat(int(hub.get("pid", 0)), time.monotonic())
        now_s = time.time()
        for model, operator in self._window.take((Tick(*tick) for tick in ticks), now_s):
            await self._crossed(model, operator)
        shows = node == self._node
        windows = self._window.worst(now_s) if shows else {}
        return {"hubs": self._hubs, "windows": [(*key, count) for key, count in windows.items()]}

    def hubs(self) -> dict[str, dict[str, Any]]:
        """The hubs heard of, by node."""
        return dict(self._hubs)

    def crossings(self) -> list[tuple[str, str]]:
        """Model and operator of every crossing so far."""
        return list(self._crossings)

    async def _crossed(self, model: str, operator: str) -> None:
        """An operator failed too often in one minute, on one replica or on several together."""
        self._crossings.append((model, operator))
        self._pager.window_crossed(model, operator)
        await self.degrade({"operator": operator, "reason": p0_reason(operator)})

    def page_drill(self, seconds: float) -> None:
        """Tell people of a failure that there is none of, marked as a drill like all for so long.

        Args:
            seconds: for which alerts are an experiment's doing.
        """
        self._pager.attacked(seconds)
        self._pager.window_crossed("drill", f"drill-{new_ulid()}")

    def statuses(self) -> dict[str, dict[str, Any]]:
        """The last status of each order."""
        return dict(self._statuses)

    def put_status(self, status: dict[str, Any], stamp: Stamp | None = None) -> None:
        """A chaos actor tells where one of its orders stands."""
        offset_ns = self._clocks.offset_ns(stamp)
        self._statuses[status["occurrence"]] = self._clocks.status(status, offset_ns)

    def put_event(self, event: dict[str, Any], stamp: Stamp | None = None) -> None:
        """The gateway or a chaos actor tells of something.

        Args:
            stamp: `clocks.stamp()` of the sender; None: it is on the board's host.
        """
        self._append(self._clocks.event(event, self._clocks.offset_ns(stamp)))

    def attacked(self, seconds: float) -> None:
        """An experiment strikes what serves here, for so long at most: pushes say so."""
        self._pager.attacked(seconds)

    def pid(self) -> int:
        """Of its process."""
        return os.getpid()

    def clock(self) -> dict[str, Any]:
        """The board's time now, for `clocks.board_clock`."""
        return stamp()

    def events(self, since: int) -> tuple[int, list[dict[str, Any]]]:
        """Events from number `since` on, and the number to ask for next.

        Who asks with a number that was never reached knew an earlier board: it gets everything.
        """
        first = self._dropped
        start = max(since - first, 0) if since <= first + len(self._events) else 0
        found = list(self._events)[start:]
        return first + len(self._events), found

    def live(self, since: int, limit: int) -> dict[str, Any]:
        """What the live page needs in one call; of many new events only the latest `limit`."""
        following = self._dropped + len(self._events)
        since = since if since <= following else 0
        fresh = min(max(following - since, 0), len(self._events))
        news = list(islice(reversed(self._events), min(fresh, limit)))
        return {
            "next": following,
            "now_ns": time.monotonic_ns(),
            "missed": max(following - since, 0) - len(news),
            "events": news[::-1],
            "statuses": self.statuses(),
            "kinds": {
                name: {"fault": one["order"]["kind"], "replica": one["replica"]}
                for name, one in self._orders.items()
            },
            "degradations": self.degradations(),
            "hubs": self.hubs(),
        }

    def replicas(self) -> dict[str, dict[str, Any]]:
        """All replicas ever heard of: their last heartbeat and whether they live."""
        now_s = time.monotonic()
        return {
            name: {**heard, "age_s": now_s - heard["heard_s"], "stalled": name in self._stalled}
            for name, heard in self._replicas.items()
        }

    def _note(self, kind: str, replica: str, data: dict[str, Any]) -> None:
        self._append(
            {
                "kind": kind,
                "t_ns": time.monotonic_ns(),
                "replica": replica,
                "step": -1,
                "request_id": "",
                "data": {**data, "replica": replica},
            }
        )

    def _append(self, event: dict[str, Any]) -> None:
        if len(self._events) == self._events.maxlen:
            self._dropped += 1
        self._events.append(event)
        self._noticed(str(event.get("kind", "")))
        self._pager.hear(event)


def _pager(paging: Paging | None, delivered: Callable[[str], None]) -> Pager:
    if paging is None or not paging.alertmanagers:
        return Pager(paging or Paging())
    counted = delivery_counter("pager")

    def count(receiver: str, result: str) -> None:
        counted(receiver, result)
        delivered(result)

    return Pager(paging, count=count)


def _nobody(kind: str) -> None:
    """Nothing is counted before the board is watched over."""


_GONE = ("", "Z", "X")
_RUNS = ("R", "S")
_UNKNOWN = "?"


def _state(pid: int) -> str:
    """State letter of a process of this machine (proc(5)), empty when there is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""
