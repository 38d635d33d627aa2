"""What is beside the replicas of this machine, as faults reach it: hub and serving processes."""

import socket
from collections.abc import Callable, Mapping
from typing import Any

import httpx
import ray

from tocsin.chaos.contract import ProcessTarget
from tocsin.chaos.process import look
from tocsin.chaos.side import SideStriker, SideTarget
from tocsin.core.clock import SystemClock
from tocsin.core.faulting import OrderStatus
from tocsin.ray_jobs.board import NAMESPACE
from tocsin.ray_jobs.hub import HUB
from tocsin.ray_jobs.places import journal_folder
from tocsin.ray_jobs.side_watch import SIDE
from tocsin.ray_jobs.sink import Sink
from tocsin.ray_jobs.strike_book import StrikeBook

_ASK_S = 5.0
_PAGE_S = 1.0


class SideBook(StrikeBook):
    """Orders of scope SIDE, carried out by the run's own process; safe to use from threads.

    Args:
        tell: hears every change of an order's state, and whom it is about.
        replicas: last heartbeats by replica.
        sink: where alerts and spans go; None: to others than this run.
        page: sends an alert that is marked as a drill.
    """

    def __init__(
        self,
        tell: Callable[[OrderStatus, str], None],
        replicas: Callable[[], Mapping[str, Mapping[str, Any]]],
        sink: Sink | None,
        page: Callable[[], None],
    ) -> None:
        """Nothing is struck yet."""
        self._replicas = replicas
        self._sink = sink
        self._page = page
        self._clock = SystemClock()
        super().__init__(SideStriker(self._clock, lambda status: tell(status, SIDE), self._around))

    def _around(self, params: Mapping[str, Any], seed: int) -> SideTarget:
        """What there is now; only processes of this machine."""
        here = socket.gethostname()
        living = [one for one in self._replicas().values() if one["alive"]]
        pids = [int(one["pid"]) for one in living if one.get("host", here) == here]
        workers = [self._process(pid, params, seed) for pid in pids]
        pid, address = _hub()
        return SideTarget(
            hub=self._process(pid, params, seed) if pid else None,
            metrics_answer=lambda: _answers(address),
            workers=tuple(one for one in workers if one is not None),
            journal=str(journal_folder()),
            params=params,
            seed=seed,
            clock=self._clock,
            receivers=self._sink,
            page=self._page,
        )

    def _process(self, pid: int, params: Mapping[str, Any], seed: int) -> ProcessTarget | None:
        reading = look(pid)
        if reading is None or reading.dead:
            return None
        return ProcessTarget(pid, reading.started_ticks, params, seed, self._clock)


def _hub() -> tuple[int, str]:
    """Process and address of this node's hub; 0 and nothing where it is not to be asked."""
    node = ray.get_runtime_context().get_node_id()
    try:
        hub: Any = ray.get_actor(f"{HUB}{node}", namespace=NAMESPACE)
        pid, address = ray.get([hub.pid.remote(), hub.address.remote()], timeout=_ASK_S)
    except (ValueError, ray.exceptions.RayError):
        return 0, ""
    return int(pid), str(address)


def _answers(address: str) -> bool:
    """Whether the node's page of metrics comes within a second."""
    if not address:
        return False
    try:
        answer = httpx.get(f"http://{address}/metrics", timeout=_PAGE_S, trust_env=False)
    except httpx.HTTPError:
        return False
    return answer.status_code == 200
