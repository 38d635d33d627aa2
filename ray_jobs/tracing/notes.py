"""What of a replica's events a trace tells, whom it concerns, and which of it keeps the trace."""

from collections.abc import Callable, Mapping
from typing import Any

from tocsin.core.history import Event, EventKind
from tocsin.ray_jobs.tracing import names
from tocsin.ray_jobs.tracing.record import Note, Value

KEEPS = frozenset(
    {
        EventKind.CHECK_FAILED,
        EventKind.BACKEND_ERROR,
        EventKind.PAGES_QUARANTINED,
        EventKind.WEIGHT_REPAIRED,
        EventKind.REQUEST_RECOMPUTED,
        EventKind.REQUEST_REFUSED,
        EventKind.REQUEST_RESUMED,
        EventKind.FAULT_FIRED,
    }
)
"""A trace in which one of these happened is kept, sampled or not."""

_TEXT_MAX = 300


def note_of(event: Event) -> Note | None:
    """The span event of an event; None for one that belongs to no request."""
    reader = _READERS.get(event.kind)
    if reader is None:
        return None
    name, pick = reader
    attributes = {key: value for key, value in pick(event.data).items() if value is not None}
    if event.step >= 0:
        attributes["step"] = event.step
    return Note(event.t_ns, name, attributes)


def requests_of(event: Event) -> tuple[str, ...]:
    """The requests that an event names; none: it concerns all that are open on its replica."""
    if event.request_id:
        return (event.request_id,)
    data = event.data
    return tuple(data.get("request_ids") or data.get("holders") or ())


Picked = dict[str, Value | None]


def _check_failed(record: Mapping[str, Any]) -> Picked:
    """From a journal record; the names are those of the first check that alarmed."""
    findings = record.get("findings") or [{}]
    first = findings[0]
    depth = record.get("layer_idx")
    return {
        names.CHECK_ID: _text(record, "failure_id"),
        names.CHECK_NAME: _text(record, "check") or _text(first, "check"),
        "layer": _text(record, "layer") or _text(first, "layer"),
        "priority": _text(record, "priority") or _text(first, "priority"),
        "operator": _text(record, "operator"),
        "layer_idx": int(depth) if depth is not None else None,
        "action": _text(record, "action"),
        "cause": _text(record, "cause"),
        "runs": int(record["runs"]) if "runs" in record else None,
        "findings": len(findings),
        "message": _text(first, "message"),
    }


def _picking(*keys: str) -> Callable[[Mapping[str, Any]], Picked]:
    """Some fields as text, the failure id under the name by which it is searched."""

    def pick(data: Mapping[str, Any]) -> Picked:
        found: Picked = {names.CHECK_ID: _text(data, "failure_id")}
        found.update({key: _text(data, key) for key in keys})
        return found

    return pick


def _text(data: Mapping[str, Any], key: str) -> str | None:
    value = data.get(key)
    return str(value)[:_TEXT_MAX] if value not in (None, "") else None


_READERS: dict[EventKind, tuple[str, Callable[[Mapping[str, Any]], Picked]]] = {
    EventKind.CHECK_FAILED: (names.CHECK_FAILED, _check_failed),
    EventKind.BACKEND_ERROR: ("backend.failed", _picking("backend", "error", "settled_on")),
    EventKind.PAGES_QUARANTINED: ("pages.quarantined", _picking("pages")),
    EventKind.WEIGHT_REPAIRED: ("weight.repaired", _picking("tensor", "tile")),
    EventKind.REQUEST_RECOMPUTED: ("request.recomputed", _picking()),
    EventKind.REQUEST_REFUSED: ("request.refused", _picking("finish", "message")),
    EventKind.REQUEST_PREEMPTED: ("request.preempted", _picking("tokens")),
    EventKind.BREAKER: ("breaker", _picking("operator", "backend", "before", "after", "reason")),
}
