"""A trace as lines for people: spans below their parents, events with the time since the begin."""

from collections.abc import Iterator, Sequence

from tocsin.ray_jobs.tracing import names
from tocsin.ray_jobs.tracing.read import Span, SpanEvent

_TOLD = (
    names.REQUEST_ID,
    names.REPLICA,
    names.OUTCOME,
    names.INPUT_TOKENS,
    names.OUTPUT_TOKENS,
    names.TOKENS,
    names.TOKENS_UNVERIFIED,
    names.DELIVERED_TOKENS,
    names.GAP_MS_MAX,
    names.DEGRADED,
    names.WHY_KEPT,
)
"""Attributes of spans that are shown; files have them all."""


def tree(spans: Sequence[Span]) -> Iterator[str]:
    """Lines of one trace; a span whose parent was not written here stands at the left.

    Args:
        spans: of one trace, at least one.
    """
    known = {span.span_id for span in spans}
    begun_ns = min(span.start_ns for span in spans)
    yield f"trace {spans[0].trace_id}"
    for root in spans:
        if root.parent_id not in known:
            yield from _below(root, spans, "  ", begun_ns)


def _below(span: Span, spans: Sequence[Span], indent: str, begun_ns: int) -> Iterator[str]:
    took_ms = (span.end_ns - span.start_ns) / 1e6
    status = f" ERROR {span.message}" if span.status == "error" else ""
    yield f"{indent}{span.name} {took_ms:.1f} ms ({span.instance}){status}"
    told = [
        f"{key.removeprefix('tocsin.')}={span.attributes[key]}"
        for key in _TOLD
        if key in span.attributes
    ]
    if told:
        yield f"{indent}    {' '.join(told)}"
    for event in span.events:
        yield f"{indent}    {_event(event, begun_ns)}"
    for link in span.links:
        yield f"{indent}    about trace {link}"
    for child in spans:
        if child.parent_id == span.span_id:
            yield from _below(child, spans, indent + "  ", begun_ns)


def _event(event: SpanEvent, begun_ns: int) -> str:
    facts = " ".join(f"{key}={value}" for key, value in event.attributes.items())
    return f"+{(event.t_ns - begun_ns) / 1e6:.1f} ms {event.name} {facts}".rstrip()
