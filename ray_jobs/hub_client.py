"""The numbers of the whole cluster, asked of the hubs of its nodes."""

import asyncio
from collections.abc import Iterable
from typing import Any

import ray

from tocsin.ray_jobs.board import NAMESPACE
from tocsin.ray_jobs.numbers import Numbers, added

_HUB_S = 3.0


class HubClient:
    """Asks every hub at once; one that does not answer counts with what it said last."""

    def __init__(self) -> None:
        """Nobody was asked yet."""
        self._last: dict[str, Numbers] = {}

    async def numbers(self, nodes: Iterable[str]) -> Numbers:
        """Counters and gauges of all nodes.

        Args:
            nodes: those whose hubs the board has heard of.
        """
        answers = await asyncio.gather(*(self._ask(node) for node in nodes))
        self._last.update({node: one for node, one in answers if one is not None})
        return added(self._last.values())

    async def _ask(self, node: str) -> tuple[str, Numbers | None]:
        try:
            hub: Any = ray.get_actor(f"hub:{node}", namespace=NAMESPACE)
            return node, await asyncio.wait_for(hub.numbers.remote(), _HUB_S)
        except (ValueError, TimeoutError, ray.exceptions.RayError):
            return node, None  # a lost node's counters stay as they were: none goes down
