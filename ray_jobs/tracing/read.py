"""Reading traces back from the node folder, for pages, reports and people."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tocsin.ray_jobs.tracing.otlp_json import STATUS_ERROR

_STATUS = {0: "unset", 1: "ok", STATUS_ERROR: "error"}
_KINDS = {0: "unspecified", 1: "internal", 2: "server", 3: "client", 4: "producer", 5: "consumer"}


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """Something that happened at one moment of a span."""

    t_ns: int
    name: str
    attributes: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Span:
    """One span as it was written.

    Attributes:
        start_ns, end_ns: nanoseconds since the epoch.
        status: `unset`, `ok` or `error`.
        links: trace ids of other traces that it is about.
        role: what its process is: `gateway`, `worker`, `nemesis`.
        instance: the process; of a worker the replica's id.
    """

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    kind: str
    start_ns: int
    end_ns: int
    status: str
    message: str
    attributes: dict[str, Any]
    events: tuple[SpanEvent, ...]
    links: tuple[str, ...]
    role: str
    instance: str

    def to_json(self) -> dict[str, Any]:
        """JSON-safe."""
        return asdict(self)


def spans_of(folder: Path, *, trace_id: str = "", failure_id: str = "") -> list[Span]:
    """All spans of the traces that have this id, or that tell of this failure; by their start.

    Args:
        folder: of span files; folders below it are read too (a run has one for each node).
    """
    wanted = {trace_id} if trace_id else _traces_with(folder, failure_id)
    if not wanted:
        return []
    found = [span for span in spans_in(folder, wanted) if span.trace_id in wanted]
    return sorted(found, key=_start)


def latest(folder: Path, count: int = 20) -> list[list[Span]]:
    """The newest traces, newest first, each with its spans by their start."""
    traces: dict[str, list[Span]] = {}
    for span in spans_in(folder):
        traces.setdefault(span.trace_id, []).append(span)
    newest = sorted(traces.values(), key=lambda spans: max(map(_start, spans)), reverse=True)
    return [sorted(spans, key=_start) for spans in newest[:count]]


def spans_in(folder: Path, containing: Iterable[str] = ()) -> Iterator[Span]:
    """Every span of a folder's files, in no order; lines that are not whole are passed over.

    Args:
        containing: texts of which a line must have one; none: all lines are read.
    """
    wanted = tuple(containing)
    for _, document in _documents(folder, wanted):
        yield from _spans(document)


def collect(folder: Path, target: Path) -> int:
    """Write all batches of a folder into one file, the oldest span first; returns their number.

    Raises:
        OSError: the target cannot be written.
    """
    lines = []
    for line, document in _documents(folder, ()):
        starts = [span.start_ns for span in _spans(document)]
        lines.append((min(starts, default=0), line))
    if lines:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("w", encoding="utf-8") as file:
            file.writelines(line + "\n" for _, line in sorted(lines))
    return len(lines)


def _start(span: Span) -> tuple[int, int]:
    """Order of spans: the one that begins first, and of two the longer one."""
    return span.start_ns, -span.end_ns


def _traces_with(folder: Path, failure_id: str) -> set[str]:
    if not failure_id:
        return set()
    return {
        span.trace_id
        for span in spans_in(folder, (failure_id,))
        if any(failure_id in event.attributes.values() for event in span.events)
    }


def _documents(folder: Path, wanted: tuple[str, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Lines and what they say; a file may be removed, or be in the middle of a line."""
    for path in sorted(folder.rglob("*.jsonl")):
        try:
            with path.open(encoding="utf-8", errors="replace") as file:
                for line in file:
                    if wanted and not any(text in line for text in wanted):
                        continue
                    try:
                        document = json.loads(line)
                    except ValueError:
                        continue
                    if isinstance(document, dict):
                        yield line.rstrip("\n"), document
        except FileNotFoundError:
            continue


def _spans(document: dict[str, Any]) -> list[Span]:
    """The spans of a batch; none where it is not one: a torn line, or another writer's file."""
    try:
        return [
            _span(span, _plain(group.get("resource", {}).get("attributes", ())))
            for group in document.get("resourceSpans", ())
            for scope in group.get("scopeSpans", ())
            for span in scope.get("spans", ())
        ]
    except (AttributeError, KeyError, TypeError, ValueError):
        return []


def _span(data: dict[str, Any], resource: dict[str, Any]) -> Span:
    status = data.get("status", {})
    return Span(
        trace_id=str(data["traceId"]),
        span_id=str(data["spanId"]),
        parent_id=str(data.get("parentSpanId", "")),
        name=str(data["name"]),
        kind=_KINDS.get(data.get("kind", 0), "unspecified"),
        start_ns=int(data["startTimeUnixNano"]),
        end_ns=int(data["endTimeUnixNano"]),
        status=_STATUS.get(status.get("code", 0), "unset"),
        message=str(status.get("message", "")),
        attributes=_plain(data.get("attributes", ())),
        events=tuple(
            SpanEvent(int(one["timeUnixNano"]), str(one["name"]), _plain(one.get("attributes", ())))
            for one in data.get("events", ())
        ),
        links=tuple(str(one["traceId"]) for one in data.get("links", ())),
        role=str(resource.get("tocsin.role", "")),
        instance=str(resource.get("service.instance.id", "")),
    )


def _plain(attributes: Iterable[dict[str, Any]]) -> dict[str, Any]:
    return {one["key"]: _value(one["value"]) for one in attributes}


def _value(value: dict[str, Any]) -> Any:
    """What an `AnyValue` holds."""
    if "intValue" in value:
        return int(value["intValue"])
    if "arrayValue" in value:
        return [_value(one) for one in value["arrayValue"].get("values", ())]
    return next(iter(value.values()), None)
