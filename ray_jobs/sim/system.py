"""`core.system.System` in one process: the real engine, checks, faults and resuming, no Ray."""

import asyncio
import platform
from collections.abc import AsyncIterator, Coroutine, Sequence
from functools import partial
from typing import Any

import torch

from tocsin.chaos.spec import Experiment
from tocsin.core.clock import Clock
from tocsin.core.faulting import Order, OrderStatus
from tocsin.core.history import Event, RequestRecord
from tocsin.core.system import GoldenAnswer, LoadRequest, ReplicaInfo
from tocsin.core.virtual import VirtualClock, run_virtually
from tocsin.ray_jobs.options import LOGITS_TOLD_EVERY, ServeOptions
from tocsin.ray_jobs.sim import SIM
from tocsin.ray_jobs.sim.core import Core, EngineCore, Planted, Report, Sink, StubCore
from tocsin.ray_jobs.sim.fleet import Fleet
from tocsin.ray_jobs.sim.gateway import Gateway
from tocsin.ray_jobs.sim.model import SimModel
from tocsin.ray_jobs.sim.replica import Pace
from tocsin.ray_jobs.sim.strikes import SimStriker

_TICK_S = 0.1


class SimSystem:
    """Implements `core.system.System`; everything in it is a coroutine of one virtual loop."""

    def __init__(
        self,
        experiment: Experiment,
        model: SimModel,
        clock: Clock,
        pace: Pace | None = None,
        planted: Planted | None = None,
    ) -> None:
        """Nothing runs before `drive` or `around`.

        Args:
            model: what replicas serve; the experiment's own is only what clients call it.
            clock: virtual for `drive`, the real one for `around`.
            planted: changes each replica once it is built, for tests of the harness.
        """
        self._model, self._clock, self._planted = model, clock, planted
        self._seed = experiment.seed
        self._options = sim_options(experiment)
        pace = pace or Pace()
        self._fleet = Fleet(self._options.replicas, self._build, clock, pace, experiment.seed)
        self._striker = SimStriker(self._fleet, self._struck)
        self._gateway = Gateway(self._fleet, self._options, model.prompting(self._options))
        self._struck_replicas: dict[str, str] = {}
        torch.set_num_threads(self._options.threads)

    def drive(self, course: Coroutine[Any, Any, None]) -> None:
        """Run a course from the birth of the replicas to its end, in virtual time.

        Raises:
            TypeError: the clock is not virtual.
        """
        if not isinstance(self._clock, VirtualClock):
            course.close()
            raise TypeError("sim: drive was called on a real clock; await `around` there")
        run_virtually(self.around(course), self._clock, seed=self._seed)

    @property
    def observes(self) -> tuple[str, ...]:
        """What it tells beyond its duty: names of `core.system.OBSERVED`."""
        return () if self._model.model is None else ("frees", "logits")

    def describe(self) -> dict[str, Any]:
        """What runs here, and that it is a simulation."""
        options = self._options
        return {
            "engine": "reference" if self._model.model is not None else "stub",
            "mode": SIM,
            "sim_model": self._model.name,
            "model": options.served_name,
            "profile": str(options.profile),
            "dtype": options.dtype,
            "replicas": options.replicas,
            "slots": options.slots,
            "pages": options.pages,
            "vocab_size": self._model.vocab_size,
            "max_length": options.max_length,
            "versions": {"python": platform.python_version(), "torch": torch.__version__},
        }

    def replicas(self) -> list[ReplicaInfo]:
        """In the order of their births; they have no process of their own, so no pid."""
        readings = [(one, one.stats()) for one in self._fleet.replicas.values()]
        return [
            ReplicaInfo(
                replica=one.name,
                pid=0,
                node=one.node,
                alive=one.alive,
                step=int(stats["step"]),
                heard_ns=one.heard_ns,
                stats=dict(stats),
            )
            for one, stats in readings
        ]

    def golden(self, prompts: Sequence[LoadRequest]) -> dict[str, GoldenAnswer]:
        """Right answers by prompt id."""
        return self._model.golden(self._options, {one.prompt_id: one.body for one in prompts})

    def certificate(self) -> dict[str, Any]:
        """Whether answers have the same bits in any company."""
        return self._model.certificate(self._options)

    def send(self, request: LoadRequest) -> AsyncIterator[RequestRecord]:
        """Through the simulated gateway."""
        return self._gateway.send(request)

    def arm(self, replica: str, order: Order) -> None:
        """It reaches the replica between two of its steps; a dead one never takes it."""
        one = self._fleet.replicas.get(replica)
        if one is not None and one.alive:
            one.call(partial(one.core.arm, order))

    def renew(self, ttl_s: float) -> None:
        """Every lease, in replicas and of strikes."""
        for one in self._fleet.living():
            one.call(partial(one.core.renew, ttl_s))
        self._striker.renew(ttl_s)

    def disarm(self, occurrence: str) -> None:
        """Everywhere; those who do not know it ignore it."""
        for one in self._fleet.living():
            one.call(partial(one.core.disarm, occurrence))
        self._striker.disarm(occurrence)

    def orders(self) -> dict[str, OrderStatus]:
        """As last told by their targets."""
        return dict(self._fleet.statuses)

    def strike(self, replica: str, order: Order) -> None:
        """On a whole replica, at once."""
        self._struck_replicas[order.occurrence] = replica
        self._striker.strike(order, replica)

    def events(self, since: int) -> tuple[int, list[Event]]:
        """From the fleet's log."""
        return len(self._fleet.events), self._fleet.events[since:]

    def close(self) -> None:
        """Nothing outlives the loop."""

    def _build(self, sink: Sink, report: Report) -> Core:
        if self._model.model is None:
            return StubCore(self._options)
        return EngineCore(self._model, self._options, self._clock, sink, report, self._planted)

    def _struck(self, status: OrderStatus) -> None:
        self._fleet.report(self._struck_replicas.get(status.occurrence, ""), status)

    async def around(self, course: Coroutine[Any, Any, None]) -> None:
        """The course, with living replicas around it, on whatever loop runs this."""
        try:
            self._fleet.start()
            ticking = asyncio.create_task(self._tick_for_ever())
        except BaseException:
            course.close()
            raise
        try:
            await course
        finally:
            ticking.cancel()
            self._fleet.stop()

    async def _tick_for_ever(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            self._striker.tick()


def sim_options(experiment: Experiment) -> ServeOptions:
    """How an experiment wants its model served; it has no folder here."""
    system = experiment.system
    return ServeOptions(
        model=system.model,
        dtype=system.dtype,
        profile=system.profile,
        replicas=system.replicas,
        slots=system.slots,
        pages=system.pages,
        page_size=system.page_size,
        max_length=system.max_length,
        device="cpu",
        logits_told_every=LOGITS_TOLD_EVERY,
    )
