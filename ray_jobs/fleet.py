"""The fleet as one gateway sees it: last heartbeats, who is in trouble, how many should be."""

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

import ray
from ray import serve
from ray.serve.schema import ServeStatus

from tocsin.core.history import Event, EventKind
from tocsin.ray_jobs.board_actor import ensure_board
from tocsin.ray_jobs.clocks import stamp
from tocsin.ray_jobs.wire import event_to_wire

WORKER = "tocsin-worker"
GATEWAY = "tocsin-gateway"
"""Names of the deployments, as a serve config names them."""
_FLEET_S = 0.2
_EXPECTED_S = 5.0
_DIED_LATELY_S = 5.0
_LEAVING = frozenset({"STOPPING", "STOPPED"})


class FleetView:
    """Follows the board; one a gateway.

    Attributes:
        board: handle of the board, also when that was made anew.
        heard: last heartbeat by replica.
        expected: replicas that there should be, as Serve has it.

    Args:
        expected: what holds until Serve was asked.
        board: its handle; None: it is found, or made.
    """

    def __init__(self, expected: int, board: Any = None) -> None:
        """Nothing was heard yet."""
        self.board: Any = ensure_board() if board is None else board
        self.heard: dict[str, dict[str, Any]] = {}
        self.expected = expected

    def living(self) -> dict[str, dict[str, Any]]:
        """Heartbeats of those that live, in the order in which they came up."""
        return {name: heard for name, heard in self.heard.items() if heard["alive"]}

    def serving(self) -> int:
        """How many live and are heard of in time."""
        return sum(not self.is_stale(name) for name in self.heard)

    def is_stale(self, replica: str | None) -> bool:
        """Whether nothing is to be waited for from a replica; None: nobody has taken it yet."""
        if replica is None:  # it may wait for one that is in trouble
            return any(
                heard["stalled"] if heard["alive"] else heard["age_s"] < _DIED_LATELY_S
                for heard in self.heard.values()
            )
        heard = self.heard.get(replica)
        return heard is None or heard["stalled"] or not heard["alive"]

    async def broken(self, replica: str, why: str) -> None:
        """A replica was seen to be dead."""
        await self.board.lost.remote(replica, why)

    async def tell(self, kind: EventKind, request_id: str, data: Mapping[str, Any]) -> None:
        """Something happened at this gateway."""
        sent = stamp()
        event = Event(kind, sent["sent_ns"], "gateway", -1, request_id, dict(data))
        await self.board.put_event.remote(event_to_wire(event), sent)

    async def follow_for_ever(self) -> None:
        """Keep up with the board; where there is none any more, make it again."""
        while True:
            try:
                self.heard = await self.board.replicas.remote()
            except ray.exceptions.RayError:
                with contextlib.suppress(ray.exceptions.RayError):
                    self.board = await asyncio.to_thread(ensure_board)
            await asyncio.sleep(_FLEET_S)

    async def count_for_ever(self) -> None:
        """Ask Serve how many replicas there should be: a config may change it at any time."""
        app = serve.get_replica_context().app_name
        while True:
            with contextlib.suppress(ray.exceptions.RayError, RuntimeError):
                status = await asyncio.to_thread(serve.status)
                self.expected = wanted_replicas(status, app, WORKER) or self.expected
            await asyncio.sleep(_EXPECTED_S)


def wanted_replicas(status: ServeStatus, app: str, deployment: str) -> int:
    """Replicas that Serve runs or is starting; 0 where it does not know the deployment."""
    known = status.applications.get(app)
    found = known.deployments.get(deployment) if known is not None else None
    if found is None:
        return 0
    return sum(count for state, count in found.replica_states.items() if state not in _LEAVING)
