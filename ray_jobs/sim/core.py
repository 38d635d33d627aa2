"""What a simulated replica steps: a real checked engine, or a stub that answers from golden."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

from tocsin.core.calls import Call, DeviceMemoryCall
from tocsin.core.clock import Clock
from tocsin.core.errors import CapacityError
from tocsin.core.faulting import Order, OrderStatus
from tocsin.core.history import Event
from tocsin.core.requests import EngineEvent, Finish, FinishEvent, Request, TokenEvent
from tocsin.core.terms import Operator, Phase
from tocsin.ray_jobs.attempts import own_id
from tocsin.ray_jobs.options import ServeOptions
from tocsin.ray_jobs.sim.model import SimModel, made_up_token
from tocsin.ray_jobs.stack import Stack, build

_FREE_BYTES, _TOTAL_BYTES = 8 << 30, 16 << 30

Tell = Callable[[Event], None]
Report = Callable[[OrderStatus], None]
Planted = Callable[[Stack], None]
"""Changes a replica once it is built: how a test plants a mistake that must be found."""


class Core(Protocol):
    """One engine and its armoury, as the replica around them drives them."""

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        ...

    def submit(self, request: Request) -> None:
        """Queue a request.

        Raises:
            SpecError, CapacityError: it is not taken.
        """
        ...

    def cancel(self, request_id: str) -> None:
        """End a request; unknown ids are ignored."""
        ...

    def step(self) -> tuple[EngineEvent, ...]:
        """One step; returns what leaves."""
        ...

    def idle(self) -> None:
        """A turn without work: leases end, pages are audited."""
        ...

    def arm(self, order: Order) -> None:
        """Take a fault order."""
        ...

    def renew(self, ttl_s: float) -> None:
        """Every lease begins anew."""
        ...

    def disarm(self, occurrence: str) -> None:
        """Take an order back."""
        ...

    def stats(self) -> dict[str, Any]:
        """Fields of `core.requests.EngineStats`."""
        ...

    def close(self) -> None:
        """The replica is gone."""
        ...


@dataclass(slots=True)
class Sink:
    """Events of one replica; clients know a request by its own id, without its attempt."""

    replica: str
    tell: Tell

    def emit(self, event: Event) -> None:
        """Pass it on."""
        data = dict(event.data)
        if "request_ids" in data:
            data["request_ids"] = [own_id(one) for one in data["request_ids"]]
        self.tell(
            replace(event, request_id=own_id(event.request_id), replica=self.replica, data=data)
        )


class EngineCore:
    """The same stack as in a served replica, on the virtual clock."""

    def __init__(
        self,
        model: SimModel,
        options: ServeOptions,
        clock: Clock,
        sink: Sink,
        report: Report,
        planted: Planted | None,
    ) -> None:
        """Copy the model and wire everything around it."""
        self._report = report
        self._stack = build(
            options,
            replica=sink.replica,
            sink=sink,
            clock=clock,
            report=self._told,
            loaded=(model.copy(), model.tokenizer),
        )
        # Heard before any fault: how much memory this machine has must not matter.
        self._stack.engine.seams.add_fault(
            Operator.DEVICE_MEMORY, Phase.BEFORE, _read_simulated_memory
        )
        if planted is not None:
            planted(self._stack)

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return self._stack.engine.has_work

    def submit(self, request: Request) -> None:
        """Queue a request."""
        self._stack.engine.submit(request)

    def cancel(self, request_id: str) -> None:
        """End a request."""
        self._stack.engine.cancel(request_id)

    def step(self) -> tuple[EngineEvent, ...]:
        """Leases and healed faults first, as in a served replica."""
        self._stack.armoury.tick(self._stack.engine.stats().step)
        return self._stack.engine.step()

    def idle(self) -> None:
        """Everything that may run out does; the step audits the pages."""
        stack = self._stack
        stack.armoury.expire()
        stack.switchboard.expire()
        stack.gate.degrader.expire()
        stack.engine.step()

    def arm(self, order: Order) -> None:
        """Into the armoury."""
        self._stack.armoury.arm(order)

    def renew(self, ttl_s: float) -> None:
        """Of the armoury."""
        self._stack.armoury.renew(ttl_s)

    def disarm(self, occurrence: str) -> None:
        """From the armoury."""
        self._stack.armoury.disarm(occurrence)

    def stats(self) -> dict[str, Any]:
        """Of the engine."""
        return asdict(self._stack.engine.stats())

    def close(self) -> None:
        """Leave the classes that the model shares with other replicas as they were."""
        self._stack.gate.guard.detach()

    def _told(self, status: OrderStatus) -> None:
        if status.evidence is not None:
            requests = tuple(own_id(one) for one in status.evidence.requests)
            status = replace(status, evidence=replace(status.evidence, requests=requests))
        self._report(status)


def _read_simulated_memory(call: Call) -> None:
    if isinstance(call, DeviceMemoryCall):
        call.free_bytes, call.total_bytes = _FREE_BYTES, _TOTAL_BYTES


@dataclass(slots=True)
class StubCore:
    """Answers from golden in the engine's rhythm; it has no seam at which a fault could act."""

    options: ServeOptions
    _waiting: list[Request] = field(default_factory=list)
    _running: list[tuple[Request, int]] = field(default_factory=list)
    _step: int = 0
    _released: int = 0

    @property
    def has_work(self) -> bool:
        """Whether anything waits or runs."""
        return bool(self._waiting or self._running)

    def submit(self, request: Request) -> None:
        """Queue a request."""
        most = self.options.engine_config().queue_max
        if len(self._waiting) >= most:
            raise CapacityError(
                f"engine: {len(self._waiting)} requests wait, expected fewer than {most}; "
                "try again later"
            )
        self._waiting.append(request)

    def cancel(self, request_id: str) -> None:
        """Forget a request."""
        self._waiting = [one for one in self._waiting if one.request_id != request_id]
        self._running = [one for one in self._running if one[0].request_id != request_id]

    def step(self) -> tuple[EngineEvent, ...]:
        """One token for each that runs."""
        self._step += 1
        while self._waiting and len(self._running) < self.options.slots:
            request = self._waiting.pop(0)
            self._running.append((request, len(request.delivered)))
        events: list[EngineEvent] = []
        running = []
        for request, index in self._running:
            if index < request.max_new_tokens:
                token = made_up_token(request.prompt_ids, index)
                events.append(TokenEvent(request.request_id, index, token, 1.0, verified=True))
                self._released += 1
            if index + 1 >= request.max_new_tokens:
                events.append(FinishEvent(request.request_id, Finish.LENGTH, index + 1))
            else:
                running.append((request, index + 1))
        self._running = running
        return tuple(events)

    def idle(self) -> None:
        """Nothing runs out here."""

    def arm(self, order: Order) -> None:
        """Nothing to arm; such orders are refused before they come here."""

    def renew(self, ttl_s: float) -> None:
        """Nothing has a lease."""

    def disarm(self, occurrence: str) -> None:
        """Nothing is armed."""

    def stats(self) -> dict[str, Any]:
        """With all pages free: there are none."""
        pages = self.options.pages
        return {
            "step": self._step,
            "running": len(self._running),
            "waiting": len(self._waiting),
            "slots": self.options.slots,
            "pages_total": pages,
            "pages_free": pages,
            "pages_used": 0,
            "pages_cached": 0,
            "pages_quarantined": 0,
            "preemptions": 0,
            "prefix_hits": 0,
            "tokens_released": self._released,
            "tokens_unverified": 0,
            "backend": "stub",
        }

    def close(self) -> None:
        """Nothing to leave."""
