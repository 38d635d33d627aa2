"""From records to OpenTelemetry spans: through the SDK's own tracer, with the ids noted before."""

import os
from collections.abc import Callable, Sequence

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import Link, NonRecordingSpan, SpanKind, Status, StatusCode
from opentelemetry.trace import set_span_in_context as in_context

from tocsin.ray_jobs.tracing import names
from tocsin.ray_jobs.tracing.context import span_context
from tocsin.ray_jobs.tracing.record import Kind, SpanRecord

SCOPE = "tocsin"
_KINDS = {Kind.SERVER: SpanKind.SERVER, Kind.INTERNAL: SpanKind.INTERNAL}


class Assembler:
    """Makes spans of the records that are kept; belongs to one thread."""

    def __init__(self, role: str, replica: str, receive: Callable[[ReadableSpan], None]) -> None:
        """Name the process that the spans come from.

        Args:
            role: what the process is (`gateway`, `worker`, `nemesis`).
            replica: its id; empty when there is one of it.
            receive: is handed each span.
        """
        self._ids = _NotedIds()
        resource = Resource.create(
            {
                "service.name": os.environ.get("OTEL_SERVICE_NAME") or "tocsin",
                "service.instance.id": replica or f"{role}-{os.getpid()}",
                "tocsin.role": role,
            }
        )
        provider = TracerProvider(
            ALWAYS_ON, resource, shutdown_on_exit=False, id_generator=self._ids
        )
        provider.add_span_processor(_Handing(receive))
        self._tracer = provider.get_tracer(SCOPE)

    def assemble(self, records: Sequence[SpanRecord], epoch_ns: int) -> None:
        """Hand on one span for each record.

        Args:
            epoch_ns: what turns monotonic nanoseconds into nanoseconds since the epoch.
        """
        for record in records:
            self._ids.trace_id = record.context.trace_id
            self._ids.span_id = record.context.span_id
            if record.notes.dropped:
                record.attributes[names.EVENTS_DROPPED] = record.notes.dropped
            span = self._tracer.start_span(
                record.name,
                _parent(record),
                _KINDS[record.kind],
                dict(record.attributes),
                [Link(span_context(link)) for link in record.links],
                record.begun_ns + epoch_ns,
            )
            for note in record.notes.kept:
                span.add_event(note.name, dict(note.attributes), note.t_ns + epoch_ns)
            if record.error is not None:
                span.set_status(Status(StatusCode.ERROR, record.error))
            span.end(max(record.ended_ns, record.begun_ns) + epoch_ns)


def _parent(record: SpanRecord) -> Context:
    """The parent as OpenTelemetry wants it; an empty context for a root."""
    if record.parent is None:
        return Context()
    return in_context(NonRecordingSpan(span_context(record.parent)), Context())


class _NotedIds(IdGenerator):
    """Gives out the ids that were noted when the record was begun."""

    trace_id = 0
    span_id = 0

    def generate_trace_id(self) -> int:
        return self.trace_id

    def generate_span_id(self) -> int:
        return self.span_id


class _Handing(SpanProcessor):
    """Hands each finished span on."""

    def __init__(self, receive: Callable[[ReadableSpan], None]) -> None:
        self._receive = receive

    def on_end(self, span: ReadableSpan) -> None:
        self._receive(span)
