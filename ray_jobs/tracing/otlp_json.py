"""Spans as OTLP in JSON, one line a batch: what OpenTelemetry's file format and collectors read.

Written here by hand because the official encoder makes protobuf messages only, and because a
local file should need nothing that `tocsin serve` does not need anyway.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode

KINDS = {
    SpanKind.INTERNAL: 1,
    SpanKind.SERVER: 2,
    SpanKind.CLIENT: 3,
    SpanKind.PRODUCER: 4,
    SpanKind.CONSUMER: 5,
}
STATUS_ERROR = 2
_STATUS = {StatusCode.UNSET: 0, StatusCode.OK: 1, StatusCode.ERROR: STATUS_ERROR}


def otlp_line(spans: Sequence[ReadableSpan]) -> str:
    """One line of JSON: a `TracesData` with all the spans, which come from one process."""
    first = spans[0]
    scope = first.instrumentation_scope
    document = {
        "resourceSpans": [
            {
                "resource": {"attributes": _attributes(first.resource.attributes)},
                "scopeSpans": [
                    {
                        "scope": {"name": scope.name if scope else ""},
                        "spans": [_span(span) for span in spans],
                    }
                ],
            }
        ]
    }
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def _span(span: ReadableSpan) -> dict[str, Any]:
    context = span.get_span_context()
    status: dict[str, Any] = {"code": _STATUS[span.status.status_code]}
    if span.status.description:
        status["message"] = span.status.description
    return {
        "traceId": f"{context.trace_id:032x}" if context else "",
        "spanId": f"{context.span_id:016x}" if context else "",
        "parentSpanId": f"{span.parent.span_id:016x}" if span.parent else "",
        "name": span.name,
        "kind": KINDS[span.kind],
        "startTimeUnixNano": str(span.start_time or 0),
        "endTimeUnixNano": str(span.end_time or 0),
        "attributes": _attributes(span.attributes or {}),
        "events": [
            {
                "timeUnixNano": str(event.timestamp),
                "name": event.name,
                "attributes": _attributes(event.attributes or {}),
            }
            for event in span.events
        ],
        "links": [
            {
                "traceId": f"{link.context.trace_id:032x}",
                "spanId": f"{link.context.span_id:016x}",
                "attributes": _attributes(link.attributes or {}),
            }
            for link in span.links
        ],
        "status": status,
    }


def _attributes(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in values.items()]


def _value(value: Any) -> dict[str, Any]:
    """One `AnyValue`; 64-bit integers are text in protobuf's JSON."""
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, (list, tuple)):
        return {"arrayValue": {"values": [_value(one) for one in value]}}
    return {"stringValue": str(value)}
