"""Injected faults as spans: `chaos.inject`, from firing to healing, linked to their victims."""

from collections.abc import Callable

from tocsin.core.faulting import OrderStatus
from tocsin.ray_jobs.tracing import names
from tocsin.ray_jobs.tracing.context import TraceContext, new_span_id, new_trace_id
from tocsin.ray_jobs.tracing.pipeline import Tracing
from tocsin.ray_jobs.tracing.record import Note, SpanRecord

FIRED = "chaos.fired"
_ENDED = ("healed", "unhealed", "expired", "disarmed")
_OPEN_MAX = 1024

Suffer = Callable[[str, Note], TraceContext | None]
"""Notes a fault with the request that it hit; returns the request's span."""


def nobody(request_id: str, note: Note) -> None:
    """For processes that serve no requests."""


class InjectSpans:
    """Follows fault orders in the process that carries them out; always exported."""

    def __init__(self, tracing: Tracing, suffer: Suffer = nobody) -> None:
        """Nothing has fired."""
        self._tracing = tracing
        self._suffer = suffer
        self._open: dict[str, SpanRecord] = {}

    def hear(self, status: OrderStatus) -> None:
        """One change of an order; only what fired becomes a span."""
        if status.fired_ns and status.occurrence not in self._open and status.state == "fired":
            if len(self._open) < _OPEN_MAX:
                self._open[status.occurrence] = self._begin(status)
        elif status.state in _ENDED:
            record = self._open.pop(status.occurrence, None)
            if record is not None:
                record.ended_ns = status.healed_ns or self._tracing.clock.now_ns()
                record.attributes["chaos.state"] = status.state
                if status.state == "unhealed":
                    record.error = status.error or "its place still reads wrong"
                self._tracing.export((record,))

    def _begin(self, status: OrderStatus) -> SpanRecord:
        facts = {"chaos.occurrence": status.occurrence}
        victims: tuple[str, ...] = ()
        if status.evidence is not None:
            victims = status.evidence.requests
            facts["chaos.place"] = status.evidence.place
            facts["chaos.before"] = status.evidence.before
            facts["chaos.after"] = status.evidence.after
        note = Note(status.fired_ns, FIRED, facts)
        hit = [self._suffer(victim, note) for victim in victims]
        return SpanRecord(
            names.INJECT,
            TraceContext(new_trace_id(), new_span_id(), sampled=True),
            None,
            status.fired_ns,
            attributes={**facts, "chaos.step": status.fired_step},
            links=tuple(one for one in hit if one is not None),
        )
