"""The served model as a chaos run sees it: HTTP in front, the board and chaos actors behind."""

import asyncio
import contextlib
import os
import platform
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import httpx
import ray
import torch
import transformers
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from transformers import AutoConfig

from tocsin.chaos.contract import faults
from tocsin.core.errors import EnvironmentFault, SpecError
from tocsin.core.faulting import Order, OrderStatus, Scope
from tocsin.core.history import Event, RequestRecord
from tocsin.core.pods import Pods
from tocsin.core.system import GoldenAnswer, HealthReading, LoadRequest, ReplicaInfo
from tocsin.ray_jobs.alert_reading import ALERTED_WITHIN_S, AlertReading
from tocsin.ray_jobs.application import Served
from tocsin.ray_jobs.board import NAMESPACE
from tocsin.ray_jobs.client import json_of, send
from tocsin.ray_jobs.clocks import ClockOffset, board_clock, stamp
from tocsin.ray_jobs.head import head_node
from tocsin.ray_jobs.nemesis import Nemesis, tell_board
from tocsin.ray_jobs.oracle import certificate, golden_answers
from tocsin.ray_jobs.pod_book import PodBook
from tocsin.ray_jobs.road_book import TIMEOUT, RoadBook
from tocsin.ray_jobs.side_book import SideBook
from tocsin.ray_jobs.sink import Sink
from tocsin.ray_jobs.wire import event_from_wire, event_to_wire, status_from_wire

_CALL_S = 15.0
_START_S = 60.0
_MEASURE_EVERY_S = 30.0
_OF_RUN = "~"
_DRILL_S = 60.0
_HEALTH_S = 1.0
"""Two pages within the two seconds that a reading may take."""
_TIMES = frozenset({"fired_ns", "healed_ns"})
TAU_ELSEWHERE = {"fp32": 1e-3, "fp16": 0.06, "bf16": 0.5}
"""Least margin in logits (of about 30) that decides a token on any build: two thousand unit
roundoffs of fp32, and for the short formats four of the largest logit."""


class RaySystem:
    """Implements `core.system.System` over an application, deployed for the run or found running.

    All times that it tells are on this process's clock, whatever host they come from.
    """

    def __init__(
        self,
        served: Served,
        cache: Path,
        *,
        pods: Pods | None = None,
        other_build: Sequence[str] = (),
        about: Mapping[str, Any] | None = None,
        run: str = "",
        road: bool = False,
        sink: Sink | None = None,
        alerts: AlertReading | None = None,
    ) -> None:
        """Begin with a clean book: orders of an earlier run are taken back.

        Args:
            cache: folder for golden answers and certificates.
            pods: of the release; None: this is no Kubernetes.
            other_build: how the replicas' build differs from this process's.
            about: further facts for the manifest.
            run: tells the orders of this run apart from those of others that the same replicas
                have had: they remember what they did, and a plan's names come again.
            road: the load travels by a proxy of this process, for faults on the network.
            sink: where the application's alerts and spans go; None: they are none of this run's.
            alerts: reads the alerts back; None: nobody knows who was told what.
        """
        self._served = served
        self._board = served.board
        self._cache = cache
        self._other_build = tuple(other_build)
        self._about = dict(about or {})
        self._suffix = f"{_OF_RUN}{run}" if run else ""
        self._nemeses: dict[str, Any] = {}
        self._client: httpx.AsyncClient | None = None
        self._client_loop: asyncio.AbstractEventLoop | None = None
        self._health: httpx.Client | None = None
        self._clock, self._clock_s = ClockOffset(), 0.0
        self._pods = None if pods is None else PodBook(pods, self._tell, self._heard)
        self._road: RoadBook | None = None
        self._side = SideBook(self._tell, self._heard, sink, self._page_drill)
        self._measure()
        self._ask(self._board.forget_orders.remote)
        if road:
            self._road = RoadBook(served.url, self._tell, self._tell_event)
        self._alerts = alerts
        self.alerted_within_s = ALERTED_WITHIN_S if alerts else 0.0

    @property
    def observes(self) -> tuple[str, ...]:
        """What it tells beyond its duty: names of `core.system.OBSERVED`."""
        logits = ("logits",) if self._served.options.logits_told_every else ()
        return ("frees", *logits, *(("alerts",) if self._alerts else ()))

    def describe(self) -> dict[str, Any]:
        """What runs here, and on what."""
        options = self._served.options
        config = AutoConfig.from_pretrained(options.folder(), local_files_only=True)
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
            "clock": asdict(self._clock),
            **({"road": self._road.describe()} if self._road is not None else {}),
            **self._about,
        }

    def replicas(self) -> list[ReplicaInfo]:
        """All replicas heard of, in the order in which they came up."""
        here = socket.gethostname()
        return [
            ReplicaInfo(
                replica=name,
                pid=one["pid"] if one.get("host", here) == here else 0,
                node=one["node"],
                alive=one["alive"],
                step=one["step"],
                heard_ns=self._clock.here_ns(int(one["heard_s"] * 1e9)),
                stats=one["stats"],
            )
            for name, one in self._heard().items()
        ]

    def health(self) -> HealthReading:
        """What the gateway's health pages say; they are asked anew each time, as by a probe."""
        found, status = self._page("/health")
        told, answered = self._page("/health/checker_status")
        serving = told.get("profile") == str(self._served.options.profile)
        return HealthReading(
            health_ok=(status == 200 and found.get("status") == "ok") if status else None,
            checker_ok=(serving and bool(told.get("replicas"))) if answered == 200 else None,
            status=status,
        )

    def _page(self, path: str) -> tuple[dict[str, Any], int]:
        """A page's JSON and HTTP status; nothing and 0 without an answer."""
        if self._health is None:
            self._health = httpx.Client(base_url=self._served.url, timeout=_HEALTH_S)
        try:
            answer = self._health.get(path)
        except httpx.HTTPError:
            return {}, 0
        return json_of(answer.content), answer.status_code

    def golden(self, prompts: Sequence[LoadRequest]) -> dict[str, GoldenAnswer]:
        """Right answers by prompt id; in this process, where everything is imported already."""
        bodies = {one.prompt_id: dict(one.body) for one in prompts}
        return golden_answers(self._served.options, bodies, self._cache)

    def certificate(self) -> dict[str, Any]:
        """Whether answers have the same bits in any company, on the replicas' build.

        It is taken here: of another build it says nothing about the bits.
        """
        taken = certificate(self._served.options, self._cache)
        return elsewhere(taken, self._served.options.dtype, self._other_build)

    async def send(self, request: LoadRequest) -> AsyncIterator[RequestRecord]:
        """Send over HTTP."""
        loop = asyncio.get_running_loop()
        if self._client is None or self._client_loop is not loop:
            # A connection belongs to its event loop, and whoever reads probes may have another one.
            self._client_loop = loop
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
            timeout = None if self._road is None else TIMEOUT
            self._client = httpx.AsyncClient(timeout=timeout, limits=limits)
        if self._road is not None:
            records = self._road.send(self._client, request)
        else:
            records = send(self._client, self._served.url, request)
        try:
            async for record in records:
                yield record
        finally:
            await records.aclose()  # type: ignore[attr-defined]

    def arm(self, replica: str, order: Order) -> None:
        """Through the board, which the replica follows."""
        self._ask(self._board.arm.remote, replica, asdict(self._of_run(order)))

    def renew(self, ttl_s: float) -> None:
        """Every lease, in replicas and chaos actors."""
        self._ask(self._board.renew.remote, ttl_s)
        for nemesis in self._nemeses.values():
            nemesis.renew.remote(ttl_s)
        for book in self._books():
            book.renew(ttl_s)
        if self._clock.error_ns and time.monotonic() - self._clock_s > _MEASURE_EVERY_S:
            self._measure()

    def disarm(self, occurrence: str) -> None:
        """Everywhere; those who do not know it ignore it."""
        occurrence += self._suffix
        self._ask(self._board.disarm.remote, occurrence)
        for nemesis in self._nemeses.values():
            nemesis.disarm.remote(occurrence)
        for book in self._books():
            book.disarm(occurrence)

    def orders(self) -> dict[str, OrderStatus]:
        """As last told by their targets."""
        told = self._ask(self._board.statuses.remote)
        statuses = {name: self._here(status_from_wire(one)) for name, one in told.items()}
        for book in self._books():
            statuses |= book.statuses()
        return {
            name.removesuffix(self._suffix): replace(
                one, occurrence=one.occurrence.removesuffix(self._suffix)
            )
            for name, one in statuses.items()
            if name.endswith(self._suffix)
        }

    def strike(self, replica: str, order: Order) -> None:
        """By the chaos actor of the replica's node; on its pod or the network, by this process.

        Raises:
            SpecError: the replica is not known, or there are no pods, or there is no road.
            EnvironmentFault: there is no head to strike from.
        """
        order = self._of_run(order)
        if faults()[order.kind].scope is Scope.NETWORK:
            if self._road is None:
                raise SpecError(no_road(order.kind))
            self._road.strike(order)
            return
        if faults()[order.kind].scope is Scope.SIDE:
            self._side.strike(order)
            return
        if faults()[order.kind].scope is Scope.CLUSTER:
            self._of_head().strike_ray.remote(asdict(order), replica)
            return
        heard = self._heard().get(replica)
        if heard is None:
            raise SpecError(f"strike: found no replica {replica!r}, expected one on the board")
        if faults()[order.kind].scope is Scope.POD:
            if self._pods is None:
                raise SpecError(no_pods(order.kind))
            self._pods.strike(order, replica, heard)
            return
        node = heard["node"]
        if faults()[order.kind].scope is Scope.NODE:
            self._of_head().strike_ray.remote(asdict(order), replica, node)
            return
        self._of_node(node).strike.remote(asdict(order), replica, heard["pid"])

    def events(self, since: int) -> tuple[int, list[Event]]:
        """From the board."""
        following, found = self._ask(self._board.events.remote, since)
        if self._alerts is not None:  # what was there before a run's first question is not its own
            self._alerts.start(self._tell_event)
        return following, [self._event(event_from_wire(one)) for one in found]

    def close(self) -> None:
        """Take all orders back; the application stays, its owner closes it."""
        if self._health is not None:
            self._health.close()
        for one in (self._road, self._alerts):
            if one is not None:
                one.close()
        with contextlib.suppress(EnvironmentFault):  # a dead board renews no lease either
            self._ask(self._board.forget_orders.remote)
        for nemesis in self._nemeses.values():
            with contextlib.suppress(ray.exceptions.RayError, ConnectionError):
                ray.kill(nemesis)

    def _heard(self) -> dict[str, dict[str, Any]]:
        """Last heartbeats by replica, as the board has them."""
        heard: dict[str, dict[str, Any]] = self._ask(self._board.replicas.remote)
        return heard

    def _ask(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """The board's answer.

        Raises:
            EnvironmentFault: it gives none.
        """
        try:
            return ray.get(call(*arguments), timeout=_CALL_S)
        except (ray.exceptions.RayError, ConnectionError) as error:
            said = (str(error) or type(error).__name__).splitlines()[0]
            raise EnvironmentFault(
                f"ray: the board gave no answer in {_CALL_S:g} s ({said}), expected one; see "
                "whether the head of the cluster is well"
            ) from error

    def _measure(self) -> None:
        try:
            self._clock, self._clock_s = board_clock(self._board), time.monotonic()
        except (ray.exceptions.RayError, ConnectionError) as error:
            raise EnvironmentFault(
                "ray: the board did not tell its time, expected it within seconds; see whether the "
                "head of the cluster is well"
            ) from error

    def _here(self, status: OrderStatus) -> OrderStatus:
        """A status on this process's clock."""
        return replace(
            status,
            fired_ns=self._clock.here_ns(status.fired_ns),
            healed_ns=self._clock.here_ns(status.healed_ns),
        )

    def _event(self, event: Event) -> Event:
        """An event on this process's clock, the times in its data too."""
        data = {
            name: self._clock.here_ns(value) if name in _TIMES else value
            for name, value in event.data.items()
        }
        if self._suffix and "occurrence" in data:
            data["occurrence"] = str(data["occurrence"]).removesuffix(self._suffix)
        return replace(event, t_ns=self._clock.here_ns(event.t_ns), data=data)

    def _of_run(self, order: Order) -> Order:
        """The order under a name that no other run has used."""
        return replace(order, occurrence=order.occurrence + self._suffix)

    def _of_node(self, node: str) -> Any:
        """The chaos actor of a node, made where there is none yet."""
        if node not in self._nemeses:
            self._nemeses[node] = _nemesis(node)
        return self._nemeses[node]

    def _of_head(self) -> Any:
        """The chaos actor of the head, where Ray's own processes are; it is there on return.

        Raises:
            EnvironmentFault: the cluster has no head any more.
        """
        head = head_node()
        if head is None:
            raise EnvironmentFault(
                "ray: the cluster has no head node, expected one; see its processes"
            )
        nemesis = self._of_node(head["NodeID"])
        try:  # what it is to strike may keep it from being made
            ray.get(nemesis.ready.remote(), timeout=_START_S)
        except (ray.exceptions.RayError, ConnectionError) as error:
            raise EnvironmentFault(
                f"ray: no chaos actor came up on the head in {_START_S:g} s, expected one; see "
                "whether the cluster is well"
            ) from error
        return nemesis

    def _books(self) -> "list[PodBook | RoadBook | SideBook]":
        """Orders that this process carries out itself."""
        return [book for book in (self._pods, self._road, self._side) if book is not None]

    def _page_drill(self) -> None:
        self._ask(self._board.page_drill.remote, _DRILL_S)

    def _tell_event(self, event: Event) -> None:
        """What this process has noticed goes to the board, too."""
        self._board.put_event.remote(event_to_wire(event), stamp())

    def _tell(self, status: OrderStatus, replica: str) -> None:
        """What this process did itself goes to the board, for everybody else who looks there."""
        tell_board(self._board, status, replica)


def no_pods(kind: str) -> str:
    """Why a fault on pods cannot be injected here."""
    return (
        f"{kind}: this is no run inside Kubernetes with a chaos policy, so there is no pod to "
        "strike; run it from the release's chaos job, or use actor.kill"
    )


def no_road(kind: str) -> str:
    """Why a fault on the network cannot be injected here."""
    return (
        f"{kind}: the load reaches the service directly, expected a road between them; name the "
        "fault in the experiment, whose run opens one"
    )


def elsewhere(taken: Mapping[str, Any], dtype: str, differences: Sequence[str]) -> dict[str, Any]:
    """A certificate for a build that differs from the one it was taken on: no bits are promised.

    The margin below which a divergence may be a tie is then at least that of another kernel.
    """
    if not differences:
        return dict(taken)
    return {
        **taken,
        "bit_exact": False,
        "tau": max(float(taken["tau"]), TAU_ELSEWHERE[dtype]),
        "why_not_bit_exact": "the replicas' build is another: " + "; ".join(differences),
    }


def _nemesis(node: str) -> Any:
    """The chaos actor of a node; it lives as long as the run does."""
    here = NodeAffinitySchedulingStrategy(node, soft=False)
    options = {"namespace": NAMESPACE, "num_cpus": 0, "max_concurrency": 4}
    actor: Any = ray.remote(Nemesis)
    return actor.options(scheduling_strategy=here, **options).remote()
