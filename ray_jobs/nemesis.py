"""The chaos actor of one node: strikes processes there, and on the head Ray itself, by lease."""

import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import ray

from tocsin.chaos.contract import ELSEWHERE
from tocsin.chaos.process import Striker
from tocsin.chaos.ray_session import RaySession
from tocsin.chaos.ray_striker import RayStriker
from tocsin.core.clock import SystemClock
from tocsin.core.faulting import OrderStatus
from tocsin.core.history import Event, EventKind
from tocsin.ray_jobs.board import BOARD, NAMESPACE
from tocsin.ray_jobs.clocks import stamp
from tocsin.ray_jobs.places import node_folder, spans_folder
from tocsin.ray_jobs.tracing.inject import InjectSpans
from tocsin.ray_jobs.tracing.pipeline import Tracing
from tocsin.ray_jobs.wire import event_to_wire, order_from_wire

_TICK_S = 0.2
_EVENTS = {
    "fired": EventKind.FAULT_FIRED,
    "healed": EventKind.FAULT_HEALED,
    "unhealed": EventKind.FAULT_HEALED,
    "expired": EventKind.FAULT_DISARMED,
    "disarmed": EventKind.FAULT_DISARMED,
}


class Nemesis:
    """Carries out PROCESS, NODE and CLUSTER orders; a thread watches leases and healing."""

    def __init__(self) -> None:
        """Nothing is struck yet."""
        self._board: Any = ray.get_actor(BOARD, namespace=NAMESPACE)
        self._striker = Striker(SystemClock(), self._report, node_folder())
        self._ray_striker = RayStriker(SystemClock(), self._report)
        self._here = ray.get_runtime_context().get_node_id()
        self._injected = InjectSpans(Tracing(spans_folder(), "nemesis"))
        self._lock = threading.Lock()
        self._replicas: dict[str, str] = {}
        self._fleet: dict[str, dict[str, Any]] = {}
        threading.Thread(target=self._tick_for_ever, daemon=True).start()

    def strike(self, order: dict[str, Any], replica: str, pid: int) -> None:
        """Do it now; the status goes to the board."""
        replacement = self._replacement()
        self._replicas[order["occurrence"]] = replica
        with self._lock:
            self._striker.strike(order_from_wire(order), pid, replacement)

    def strike_ray(self, order: dict[str, Any], about: str, node: str = "") -> None:
        """The same on Ray itself; only in a cluster of the run's own.

        Args:
            about: the replica that it is about, or `cluster`.
            node: id of that replica's node; empty: the order is about all of the cluster.
        """
        replacement = self._replacement() if node else None
        self._replicas[order["occurrence"]] = about
        with self._lock:
            session = partial(RaySession.of_head, self._here)
            self._ray_striker.strike(order_from_wire(order), session, node, replacement)

    def ready(self) -> bool:
        """It is there."""
        return True

    def renew(self, ttl_s: float) -> None:
        """The controller is alive."""
        with self._lock:
            for striker in (self._striker, self._ray_striker):
                striker.renew(ttl_s)

    def disarm(self, occurrence: str) -> None:
        """Take an order back: a frozen process goes on."""
        with self._lock:
            for striker in (self._striker, self._ray_striker):
                striker.disarm(occurrence)

    def _replacement(self) -> Callable[[], int | None]:
        """Finds who serves in place of a replica that is about to be lost."""
        known = set(ray.get(self._board.replicas.remote()))

        def replacement() -> int | None:
            for name, heard in self._fleet.items():
                if name not in known and heard["alive"] and not heard["stalled"]:
                    return int(heard["pid"]) if heard["node"] == self._here else ELSEWHERE
            return None

        return replacement

    def _tick_for_ever(self) -> None:
        while True:
            time.sleep(_TICK_S)
            try:
                self._fleet = ray.get(self._board.replicas.remote(), timeout=2.0)
            except ray.exceptions.RayError:
                continue
            with self._lock:
                for striker in (self._striker, self._ray_striker):
                    striker.tick()

    def _report(self, status: OrderStatus) -> None:
        tell_board(self._board, status, self._replicas.get(status.occurrence, ""))
        self._injected.hear(status)


def tell_board(board: Any, status: OrderStatus, replica: str) -> None:
    """Where an order stands, as a status and as an event; nobody waits for the board.

    Args:
        replica: whom the order is about.
    """
    sent = stamp()
    board.put_status.remote(asdict(status), sent)
    kind = _EVENTS.get(status.state)
    if kind is not None:
        data = {**asdict(status), "replica": replica}
        event = Event(kind, sent["sent_ns"], replica, status.fired_step, data=data)
        board.put_event.remote(event_to_wire(event), sent)
