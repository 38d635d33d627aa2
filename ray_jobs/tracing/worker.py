"""A replica's part of a trace: `prefill` and `decode`, and what went wrong in them.

It hears what the replica tells anyway: its events, as a sink between engine and outbox, and the
messages of a stream. The thread that steps the engine writes a note only when something happened.
"""

import threading
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from tocsin.core.faulting import OrderStatus
from tocsin.core.history import Event
from tocsin.core.protocols import Sink
from tocsin.core.requests import EngineEvent, FinishEvent, Request, TokenEvent
from tocsin.ray_jobs.tracing import names
from tocsin.ray_jobs.tracing.context import TraceContext, new_span_id, parse
from tocsin.ray_jobs.tracing.inject import InjectSpans
from tocsin.ray_jobs.tracing.notes import KEEPS, note_of, requests_of
from tocsin.ray_jobs.tracing.pipeline import Tracing
from tocsin.ray_jobs.tracing.record import Note, Notes, SpanRecord
from tocsin.ray_jobs.wire import step_event_to_wire

_FAILURES_REMEMBERED = 64


class WorkerTraces:
    """Traces of one replica; implements `core.protocols.Sink` and passes every event on.

    Args:
        below: where events go from here.
        report: where changes of fault orders go from here.
    """

    def __init__(
        self, tracing: Tracing, below: Sink, report: Callable[[OrderStatus], None]
    ) -> None:
        """No request is open."""
        self._tracing = tracing
        self._below = below
        self._report = report
        self._open: dict[str, _Open] = {}
        self._failures: OrderedDict[str, tuple[str, ...]] = OrderedDict()
        self._lock = threading.Lock()
        self._injected = InjectSpans(tracing, self._suffer)

    def emit(self, event: Event) -> None:
        """Note an event with the requests that it concerns."""
        note = note_of(event)
        if note is not None:
            self._note(note, event)
        self._below.emit(event)

    def report(self, status: OrderStatus) -> None:
        """A fault order changed: its victims are kept, its span links to them."""
        self._injected.hear(status)
        self._report(status)

    def trace_of(self, request_id: str) -> str:
        """Traceparent of a request's span at this moment, empty for one that is not traced."""
        with self._lock:
            found = self._open.get(request_id)
        return found.now.header if found is not None else ""

    async def messages(
        self, request: Request, events: AsyncGenerator[EngineEvent, None]
    ) -> AsyncGenerator[dict[str, Any], None]:
        """What a stream tells the gateway: tokens and ending, and once that the trace is kept."""
        parent = parse(request.traceparent) if self._tracing.settings.enabled else None
        found = None if parent is None else self._begin(request, parent)
        told = False
        async with aclosing(events):
            try:
                async for event in events:
                    if found is not None:
                        found.hear(event, self._tracing.clock.now_ns())
                        if found.kept and not told:
                            told = True
                            yield {"type": "trace", "why": found.kept}
                        if isinstance(event, FinishEvent):  # nobody may ask for more after it
                            self._end(found)
                            found = None
                    yield step_event_to_wire(event)
            finally:
                if found is not None:
                    self._end(found)

    def _begin(self, request: Request, parent: TraceContext) -> "_Open":
        found = _Open(request, parent, self._tracing.clock.now_ns())
        with self._lock:
            self._open[request.request_id] = found
        return found

    def _end(self, found: "_Open") -> None:
        with self._lock:
            # A request that was refused as a double must not take the other one out.
            if self._open.get(found.request.request_id) is found:
                del self._open[found.request.request_id]
        if found.parent.sampled or found.kept:
            self._tracing.export(found.records(self._tracing.clock.now_ns()))

    def _note(self, note: Note, event: Event) -> None:
        failure_id = str(note.attributes.get(names.CHECK_ID, ""))
        wanted = requests_of(event)
        with self._lock:
            if wanted and failure_id:
                self._failures[failure_id] = wanted
                while len(self._failures) > _FAILURES_REMEMBERED:
                    self._failures.popitem(last=False)
            wanted = wanted or self._failures.get(failure_id, ())
            if wanted:
                concerned = [self._open[one] for one in wanted if one in self._open]
            else:  # free memory, a breaker: whoever is here
                concerned = list(self._open.values())
        why = note.name if event.kind in KEEPS else ""
        for one in concerned:
            one.note(note, why)

    def _suffer(self, request_id: str, note: Note) -> TraceContext | None:
        """A fault fired at a request: its span, None when it is not traced."""
        with self._lock:
            found = self._open.get(request_id)
        if found is None:
            return None
        found.note(note, note.name)
        return found.now


@dataclass(slots=True)
class _Open:
    """A traced request on this replica.

    Attributes:
        kept: why the trace is kept, empty as long as nothing happened.
    """

    request: Request
    parent: TraceContext
    begun_ns: int
    kept: str = ""
    first_ns: int = 0
    last_ns: int = 0
    tokens: int = 0
    unverified: int = 0
    gap_ns_max: int = 0
    ending: FinishEvent | None = None
    notes: Notes = field(default_factory=lambda: Notes(spans=2))
    prefill: TraceContext = field(init=False)
    decode: TraceContext = field(init=False)

    def __post_init__(self) -> None:
        parent = self.parent
        self.prefill = TraceContext(parent.trace_id, new_span_id(), parent.sampled)
        self.decode = TraceContext(parent.trace_id, new_span_id(), parent.sampled)

    @property
    def now(self) -> TraceContext:
        """The span that is open."""
        return self.decode if self.first_ns else self.prefill

    def note(self, note: Note, why: str) -> None:
        """Something happened; `why`: it keeps the trace. May be called from any thread."""
        self.kept = self.kept or why
        self.notes.add(note)

    def hear(self, event: EngineEvent, now_ns: int) -> None:
        """A token leaves, or the ending."""
        if isinstance(event, TokenEvent):
            if self.first_ns:
                self.gap_ns_max = max(self.gap_ns_max, now_ns - self.last_ns)
            else:
                self.first_ns = now_ns
            self.last_ns = now_ns
            self.tokens += 1
            self.unverified += not event.verified
            return
        self.ending = event
        if not event.finish.complete:
            self.kept = self.kept or str(event.finish)

    def records(self, now_ns: int) -> tuple[SpanRecord, ...]:
        """The spans: `prefill`, and `decode` when a token came."""
        request = self.request
        prefill = SpanRecord(
            names.PREFILL,
            self.prefill,
            self.parent,
            self.begun_ns,
            self.first_ns or now_ns,
            attributes={
                names.REQUEST_ID: request.request_id,
                names.INPUT_TOKENS: len(request.prompt_ids),
                names.DELIVERED_TOKENS: len(request.delivered),
            },
        )
        last = prefill
        spans: tuple[SpanRecord, ...] = (prefill,)
        if self.first_ns:
            last = SpanRecord(names.DECODE, self.decode, self.parent, self.first_ns, now_ns)
            last.attributes = {names.REQUEST_ID: request.request_id, **self._steps()}
            spans = (prefill, last)
        last.notes.dropped = self.notes.dropped
        for note in self.notes.kept:
            (last if note.t_ns >= last.begun_ns else prefill).notes.add(note)
        self._conclude(last)
        if self.parent.sampled:
            self.kept = self.kept or "sampled"
        for span in spans:
            span.attributes[names.WHY_KEPT] = self.kept
        return spans

    def _steps(self) -> dict[str, int | float]:
        """The decode steps in sum."""
        gaps = self.tokens - 1
        mean_ns = (self.last_ns - self.first_ns) / gaps if gaps else 0.0
        return {
            names.TOKENS: self.tokens,
            names.TOKENS_UNVERIFIED: self.unverified,
            names.GAP_MS_MEAN: round(mean_ns / 1e6, 3),
            names.GAP_MS_MAX: round(self.gap_ns_max / 1e6, 3),
        }

    def _conclude(self, last: SpanRecord) -> None:
        """How it ended, on the last span; an error only if the answer suffered."""
        ending = self.ending
        if ending is None:
            last.attributes[names.OUTCOME] = "aborted"
            return
        last.attributes[names.OUTCOME] = str(ending.finish)
        if ending.degraded:
            last.attributes[names.DEGRADED] = ending.degraded
        if not ending.finish.complete:
            last.error = ending.message or str(ending.finish)
            last.attributes[names.ERROR_TYPE] = str(ending.finish)
