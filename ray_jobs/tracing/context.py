"""Trace context as it travels (W3C traceparent), new ids, and the decision at the head."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from opentelemetry.sdk.trace.sampling import Decision, ParentBased, TraceIdRatioBased
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    TraceFlags,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_W3C = TraceContextTextMapPropagator()


@dataclass(frozen=True, slots=True)
class TraceContext:
    """One span as others refer to it.

    Attributes:
        sampled: whether the trace is exported whatever happens; one that is not may still be.
    """

    trace_id: int
    span_id: int
    sampled: bool

    @property
    def header(self) -> str:
        """Value of the traceparent header."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{int(self.sampled):02x}"


def parse(traceparent: str) -> TraceContext | None:
    """The context of a header; None for one that W3C calls invalid."""
    return from_headers({"traceparent": traceparent}) if traceparent else None


def from_headers(headers: Mapping[str, str]) -> TraceContext | None:
    """The caller's context; None when it sent none, or none that is valid."""
    given = headers.get("traceparent")
    if not given:
        return None
    span = get_current_span(_W3C.extract({"traceparent": given}))
    context = span.get_span_context()
    if not context.is_valid:
        return None
    return TraceContext(context.trace_id, context.span_id, context.trace_flags.sampled)


def ids_of(traceparent: str) -> tuple[str, str]:
    """Trace id and span id in hexadecimal; empty ones for an empty header."""
    parts = traceparent.split("-")
    return (parts[1], parts[2]) if len(parts) == 4 else ("", "")


def new_trace_id() -> int:
    """128 random bits, not all zero; the lower ones decide the sampling."""
    return secrets.randbits(128) or 1


def new_span_id() -> int:
    """64 random bits, not all zero."""
    return secrets.randbits(64) or 1


class HeadSampler:
    """Decides when a trace begins: as the caller did, else a share of the trace ids."""

    def __init__(self, ratio: float) -> None:
        """The same ids are chosen in every process with the same ratio."""
        self._sampler = ParentBased(TraceIdRatioBased(ratio))

    def begin(self, parent: TraceContext | None) -> TraceContext:
        """The context of a trace's first span here."""
        if parent is None:
            trace_id = new_trace_id()
            chosen = self._sampler.should_sample(None, trace_id, "")
        else:
            trace_id = parent.trace_id
            context = set_span_in_context(NonRecordingSpan(span_context(parent)))
            chosen = self._sampler.should_sample(context, trace_id, "")
        return TraceContext(trace_id, new_span_id(), chosen.decision is Decision.RECORD_AND_SAMPLE)


def span_context(context: TraceContext) -> SpanContext:
    """The same as OpenTelemetry has it: a span of another process."""
    flags = TraceFlags(TraceFlags.SAMPLED if context.sampled else TraceFlags.DEFAULT)
    return SpanContext(context.trace_id, context.span_id, is_remote=True, trace_flags=flags)
