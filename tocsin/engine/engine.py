"""The reference engine: Transformers' own model code over paged KV memory, one step at a time."""

import inspect
import threading
from collections import deque
from typing import Any

import torch
from torch import nn

from tocsin.core.clock import Clock, SystemClock, is_real
from tocsin.core.errors import BackendError, CapacityError, SpecError
from tocsin.core.history import Event, EventKind
from tocsin.core.protocols import BackendChoice, Gate, Sink
from tocsin.core.requests import (
    EngineEvent,
    EngineStats,
    Finish,
    Request,
)
from tocsin.core.seams import Seams
from tocsin.engine import attention
from tocsin.engine.admission import refuse_unsupported, validate
from tocsin.engine.config import EngineConfig
from tocsin.engine.gate import FixedChoice, OpenGate
from tocsin.engine.ledger import Ledger
from tocsin.engine.memory import MemoryReader
from tocsin.engine.pace import Stopwatch
from tocsin.engine.pages import PagePool
from tocsin.engine.scheduler import DECODE
from tocsin.engine.scrub import PageScrub
from tocsin.engine.sequence import Sequence
from tocsin.engine.step import STEP_ERRORS, Attempt, Parts
from tocsin.engine.upkeep import Aside, Upkeep


class NoSink:
    """Events go nowhere; implements `core.protocols.Sink`."""

    def emit(self, event: Event) -> None:
        """Drop it."""


class ReferenceEngine:
    """Continuous batching over one model; implements `core.protocols.Engine`.

    What follows from a verdict (failures, quarantine, recomputes, refusals, labels) is told by the
    gate that gave it; the engine tells what it alone knows: preemptions, requests that it ends
    with an error of its own, backend errors that no gate took up, and page audits.

    `step` belongs to one thread; `submit`, `cancel` and `stats` may be called from any.

    Args:
        model: a Transformers decoder with full attention; it is switched to `tocsin_paged`.
        tokenizer: kept for those who serve the engine; the engine itself works on token ids.
        gate: None: no checks, every token is released unverified.
        choice: None: always the first backend of the configuration.
        replica: name in events.
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any = None,
        config: EngineConfig | None = None,
        gate: Gate | None = None,
        choice: BackendChoice | None = None,
        sink: Sink | None = None,
        clock: Clock | None = None,
        seams: Seams | None = None,
        replica: str = "",
    ) -> None:
        """Allocate the pages.

        Raises:
            SpecError: the model needs something that the engine does not have.
        """
        self.config = config or EngineConfig()
        self.model, self.tokenizer = model, tokenizer
        self.seams = Seams() if seams is None else seams
        self.choice: BackendChoice = choice or FixedChoice(self.config.backends)
        if self.config.torch_threads is not None:
            torch.set_num_threads(self.config.torch_threads)
        facts: Any = model.config
        refuse_unsupported(facts, self.config)
        heads = int(facts.num_attention_heads)
        key_heads = int(getattr(facts, "num_key_value_heads", None) or heads)
        head_size = int(getattr(facts, "head_dim", None) or facts.hidden_size // heads)
        weight = next(model.parameters())
        self.pages = PagePool(
            pages=self.config.pages,
            depth=int(facts.num_hidden_layers),
            width=key_heads * head_size,
            page_size=self.config.page_size,
            heads=key_heads,
            dtype=weight.dtype,
            device=weight.device,
        )
        self._ledger = Ledger(
            self.config, self.pages, sink or NoSink(), clock or SystemClock(), replica
        )
        self._scheduler = self._ledger.scheduler
        self._upkeep = Upkeep(self._ledger, self.seams, self.config.audit_steps)
        self._stopwatch = Stopwatch(self._ledger.clock, real=is_real(self._ledger.clock))
        self._inbox: deque[Sequence] = deque()
        self._cancelled: deque[tuple[str, int]] = deque()  # request, step of the cancel
        self._to_preempt: deque[str] = deque()
        self._lock = threading.Lock()
        self._idle_audited = True
        self._parts = Parts(
            model=model,
            pool=self.pages,
            seams=self.seams,
            gate=gate or OpenGate(self.choice),
            sink=self._ledger.sink,
            clock=self._ledger.clock,
            memory=MemoryReader(weight.device, self._ledger.clock),
            scrub=PageScrub(self.pages, self.config.kv_scrub_pages),
            replica=replica,
            vocab_size=int(facts.vocab_size),
            key_heads=key_heads,
            groups=heads // key_heads,
            cache_keyword=cache_keyword(model),
            find=self._ledger.sequences.get,
        )
        attention.register()
        if not str(facts._attn_implementation).endswith(attention.IMPLEMENTATION):
            model.set_attn_implementation(attention.IMPLEMENTATION)  # type: ignore[operator]

    @property
    def gate(self) -> Gate:
        """What decides about each step; may be replaced between two steps."""
        return self._parts.gate

    @gate.setter
    def gate(self, gate: Gate) -> None:
        # A gate needs the engine's pages, and so is often made after the engine.
        self._parts.gate = gate

    @property
    def aside(self) -> Aside | None:
        """Who hears of what concerns no row of a step, lost pages say; None: nobody."""
        return self._upkeep.aside

    @aside.setter
    def aside(self, aside: Aside | None) -> None:
        self._upkeep.aside = aside

    @property
    def has_work(self) -> bool:
        """Whether the next `step` would do or report anything."""
        return bool(self._inbox or self._cancelled or self._ledger.sequences)

    def submit(self, request: Request) -> None:
        """Queue a request.

        Raises:
            SpecError: it cannot be served at all (empty, too long, unknown token ids, a double).
            CapacityError: the queue is full; try later.
        """
        validate(request, self.config, self._parts.vocab_size)
        with self._lock:
            waiting = len(self._inbox) + len(self._scheduler.waiting)
            most = self.config.queue_max
            if self._scheduler.careful:  # while pages change hands too fast: not a queue as well
                most = min(most, self.config.slots)
            if waiting >= most:
                raise CapacityError(
                    f"engine: {waiting} requests wait, expected fewer than {most}; try again later"
                )
            if request.request_id in self._ledger.sequences:
                raise SpecError(
                    f"engine: request {request.request_id!r} is here already; give it another id"
                )
            sequence = Sequence.of(request)
            self._ledger.sequences[request.request_id] = sequence
            self._inbox.append(sequence)

    def cancel(self, request_id: str) -> None:
        """End a request and free its pages at the next `step`; unknown ids are ignored."""
        if request_id in self._ledger.sequences:
            self._cancelled.append((request_id, self._ledger.step))

    def preempt(self, request_id: str) -> None:
        """Take a running request's pages away at the next `step`: it is replayed from the start.

        The engine does so by itself when pages run out; unknown and waiting ids are ignored.
        """
        if request_id in self._ledger.sequences:
            self._to_preempt.append(request_id)

    def step(self) -> tuple[EngineEvent, ...]:
        """Run one step if there is work; returns what leaves the engine, in order."""
        events: list[EngineEvent] = []
        self._take_in(events)
        plan = self._scheduler.plan()
        self._ledger.end_unservable(events)
        if plan is None:
            self._audit_when_idle()
            return tuple(events)
        self._idle_audited = False
        self._ledger.step += 1
        attempt = Attempt(self._parts, plan, self._ledger.step, self.choice.choose())
        gate = self._parts.gate
        self._stopwatch.start()
        gate.open(attempt)
        error: Exception | None = None
        try:
            attempt.run()
        except STEP_ERRORS as raised:
            error = raised
        settlement = gate.settle(attempt, error)
        if isinstance(error, BackendError) and not settlement.failures:
            self._ledger.tell(
                EventKind.BACKEND_ERROR, None, backend=attempt.backend, error=str(error)
            )
        for row, sequence in enumerate(plan.rows):
            if sequence is not None:
                self._ledger.settle(attempt, row, sequence, settlement, error, events)
        self._ledger.recompute_others()
        quiet = plan.kind == DECODE and error is None and not settlement.failures
        self._upkeep.after_step(self._stopwatch.stop_s() if quiet else None)
        return tuple(events)

    def request(self, request_id: str) -> Request | None:
        """A request that waits or runs; None when it is unknown."""
        sequence = self._ledger.sequences.get(request_id)
        return sequence.request if sequence is not None else None

    def stats(self) -> EngineStats:
        """A reading between two steps."""
        counts = self.pages.counts()
        return EngineStats(
            step=self._ledger.step,
            running=len(self._scheduler.running),
            waiting=len(self._scheduler.waiting) + len(self._inbox),
            slots=self.config.slots,
            pages_total=self.config.pages,
            pages_free=counts["free"],
            pages_used=counts["used"],
            pages_cached=counts["cached"],
            pages_quarantined=counts["quarantined"],
            preemptions=self._ledger.preemptions,
            prefix_hits=self.pages.prefix_hits,
            tokens_released=self._ledger.released,
            tokens_unverified=self._ledger.unverified,
            backend=self._serving(),
        )

    def audit(self) -> dict[str, Any]:
        """Page conservation as data of a PAGE_AUDIT event."""
        found = self.pages.audit()
        gone = [one for one in self.pages.running() if one not in self._ledger.sequences]
        problems = [*found["problems"], *(f"{one}: holds pages and is not here" for one in gone)]
        running = len(self._scheduler.running)
        return {**found, "conserved": not problems, "problems": problems, "running": running}

    # --- between steps ---

    def _take_in(self, events: list[EngineEvent]) -> None:
        """New requests join the queue, cancelled ones leave, preempted ones start over."""
        with self._lock:
            while self._inbox:
                sequence = self._inbox.popleft()
                finish = sequence.finish()
                if finish is None:
                    self._scheduler.waiting.append(sequence)
                else:  # resumed when nothing was missing but the ending
                    self._ledger.end(sequence, finish, events)
            while self._cancelled:
                request_id, since_step = self._cancelled.popleft()
                found = self._ledger.sequences.get(request_id)
                if found is not None:
                    held = len(self.pages.entries(request_id))
                    self._ledger.end(found, Finish.CANCELLED, events)
                    steps = self._ledger.step - since_step
                    self._ledger.tell(EventKind.PAGES_FREED, found, pages=held, steps=steps)
            while self._to_preempt:
                found = self._ledger.sequences.get(self._to_preempt.popleft())
                if found is not None and found.slot >= 0:
                    self._scheduler.requeue(found)
                    self._ledger.preempted(found)

    def _audit_when_idle(self) -> None:
        """Once each time that the engine falls idle."""
        if not self._idle_audited and not self._ledger.sequences:
            self._idle_audited = True
            self._upkeep.at_rest()
            self._ledger.tell(EventKind.PAGE_AUDIT, None, **self.audit())

    def _serving(self) -> str:
        """The backend in use, without drawing a trial from a breaker."""
        peek = getattr(self.choice, "peek", self.choice.choose)
        return str(peek())


def cache_keyword(model: nn.Module) -> str:
    """Transformers 5.24 calls it `cache`, older ones `past_key_values`."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
