"""The served model as a chaos run sees it: HTTP in front, the board and chaos actors behind."""

import contextlib
import os
import platform
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
import ray
import torch
import transformers
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from transformers import AutoConfig

from tocsin.core.errors import SpecError
from tocsin.core.faulting import Order, OrderStatus
from tocsin.core.history import Event, RequestRecord
from tocsin.core.system import GoldenAnswer, LoadRequest, ReplicaInfo
from tocsin.ray_jobs.application import Served
from tocsin.ray_jobs.board import NAMESPACE
from tocsin.ray_jobs.client import send
from tocsin.ray_jobs.nemesis import Nemesis
from tocsin.ray_jobs.oracle import certificate, golden_answers
from tocsin.ray_jobs.wire import event_from_wire, status_from_wire

_CALL_S = 15.0


class RaySystem:
    """Implements `core.system.System` over a deployed application."""

    def __init__(self, served: Served, cache: Path) -> None:
        """Begin with a clean book: orders of an earlier run are taken back.

        Args:
            cache: folder for golden answers and certificates.
        """
        self._served = served
        self._board = served.board
        self._cache = cache
        self._nemeses: dict[str, Any] = {}
        self._client: httpx.AsyncClient | None = None
        ray.get(self._board.forget_orders.remote(), timeout=_CALL_S)

    def describe(self) -> dict[str, Any]:
        """What runs here, and on what."""
        options = self._served.options
        config = AutoConfig.from_pretrained(options.path, local_files_only=True)
        return {
            "engine": "reference",
            "model": options.served_name,
            "profile": str(options.profile),
            "dtype": options.dtype,
            "url": self._served.url,
            "replicas": options.replicas,
            "slots": options.slots,
            "pages": options.pages,
            "vocab_size": int(config.vocab_size),
            "max_length": options.max_length,
            "versions": {
                "python": platform.python_version(),
                "torch": torch.__version__,
                "transformers": transformers.__version__,
                "ray": ray.__version__,
            },
            "cpus": os.cpu_count(),
            "nodes": len(ray.nodes()),  # type: ignore[no-untyped-call]
        }

    def replicas(self) -> list[ReplicaInfo]:
        """All replicas heard of, in the order in which they came up."""
        heard = ray.get(self._board.replicas.remote(), timeout=_CALL_S)
        return [
            ReplicaInfo(
                replica=name,
                pid=one["pid"],
                node=one["node"],
                alive=one["alive"],
                step=one["step"],
                heard_ns=int(one["heard_s"] * 1e9),
                stats=one["stats"],
            )
            for name, one in heard.items()
        ]

    def golden(self, prompts: Sequence[LoadRequest]) -> dict[str, GoldenAnswer]:
        """Right answers by prompt id; in this process, where everything is imported already."""
        bodies = {one.prompt_id: dict(one.body) for one in prompts}
        return golden_answers(self._served.options, bodies, self._cache)

    def certificate(self) -> dict[str, Any]:
        """Whether answers have the same bits in any company, on this machine and build."""
        return certificate(self._served.options, self._cache)

    async def send(self, request: LoadRequest) -> AsyncIterator[RequestRecord]:
        """Send over HTTP."""
        if self._client is None:
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
            self._client = httpx.AsyncClient(timeout=None, limits=limits)
        records = send(self._client, self._served.url, request)
        try:
            async for record in records:
                yield record
        finally:
            await records.aclose()  # type: ignore[attr-defined]

    def arm(self, replica: str, order: Order) -> None:
        """Through the board, which the replica follows."""
        ray.get(self._board.arm.remote(replica, asdict(order)), timeout=_CALL_S)

    def renew(self, ttl_s: float) -> None:
        """Every lease, in replicas and chaos actors."""
        ray.get(self._board.renew.remote(ttl_s), timeout=_CALL_S)
        for nemesis in self._nemeses.values():
            nemesis.renew.remote(ttl_s)

    def disarm(self, occurrence: str) -> None:
        """Everywhere; those who do not know it ignore it."""
        ray.get(self._board.disarm.remote(occurrence), timeout=_CALL_S)
        for nemesis in self._nemeses.values():
            nemesis.disarm.remote(occurrence)

    def orders(self) -> dict[str, OrderStatus]:
        """As last told by their targets."""
        statuses = ray.get(self._board.statuses.remote(), timeout=_CALL_S)
        return {name: status_from_wire(status) for name, status in statuses.items()}

    def strike(self, replica: str, order: Order) -> None:
        """By the chaos actor of the replica's node.

        Raises:
            SpecError: the replica is not known.
        """
        heard = ray.get(self._board.replicas.remote(), timeout=_CALL_S).get(replica)
        if heard is None:
            raise SpecError(f"strike: found no replica {replica!r}, expected one on the board")
        node = heard["node"]
        if node not in self._nemeses:
            self._nemeses[node] = _nemesis(node)
        self._nemeses[node].strike.remote(asdict(order), replica, heard["pid"])

    def events(self, since: int) -> tuple[int, list[Event]]:
        """From the board."""
        following, found = ray.get(self._board.events.remote(since), timeout=_CALL_S)
        return following, [event_from_wire(one) for one in found]

    def close(self) -> None:
        """Take all orders back; the application stays, its owner closes it."""
        with contextlib.suppress(ray.exceptions.RayError):  # a dead board renews no lease either
            ray.get(self._board.forget_orders.remote(), timeout=_CALL_S)
        for nemesis in self._nemeses.values():
            ray.kill(nemesis)


def _nemesis(node: str) -> Any:
    """The chaos actor of a node; it lives as long as the run does."""
    here = NodeAffinitySchedulingStrategy(node, soft=False)
    options = {"namespace": NAMESPACE, "num_cpus": 0, "max_concurrency": 4}
    actor: Any = ray.remote(Nemesis)
    return actor.options(scheduling_strategy=here, **options).remote()
