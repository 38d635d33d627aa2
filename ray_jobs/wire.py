"""How orders, events and statuses travel between processes: JSON-safe dicts and back."""

from dataclasses import asdict
from typing import Any

from tocsin.core.faulting import Evidence, Order, OrderStatus
from tocsin.core.history import Event, EventKind
from tocsin.core.requests import EngineEvent, FinishEvent, Request, Sampling, TokenEvent


def event_to_wire(event: Event) -> dict[str, Any]:
    """An event as a dict."""
    return asdict(event)


def event_from_wire(data: dict[str, Any]) -> Event:
    """The event of a dict."""
    return Event(**{**data, "kind": EventKind(data["kind"])})


def order_from_wire(data: dict[str, Any]) -> Order:
    """The order of a dict (`asdict` makes the dict)."""
    return Order(**data)


def status_from_wire(data: dict[str, Any]) -> OrderStatus:
    """The status of a dict (`asdict` makes the dict)."""
    evidence = data.get("evidence")
    found = None
    if evidence is not None:
        found = Evidence(**{**evidence, "requests": tuple(evidence["requests"])})
    return OrderStatus(**{**data, "evidence": found})


def request_from_wire(data: dict[str, Any]) -> Request:
    """The request of a dict (`asdict` makes the dict)."""
    return Request(
        request_id=data["request_id"],
        prompt_ids=tuple(data["prompt_ids"]),
        max_new_tokens=data["max_new_tokens"],
        sampling=Sampling(**data["sampling"]),
        stop_ids=tuple(data["stop_ids"]),
        ignore_eos=data["ignore_eos"],
        delivered=tuple(data["delivered"]),
        traceparent=data["traceparent"],
    )


def step_event_to_wire(event: EngineEvent) -> dict[str, Any]:
    """A token or an ending as a dict with its type."""
    kind = "token" if isinstance(event, TokenEvent) else "finish"
    return {"type": kind, **asdict(event)}


def step_event_from_wire(data: dict[str, Any]) -> EngineEvent:
    """The token or ending of a dict."""
    fields = {key: value for key, value in data.items() if key != "type"}
    fields["degraded"] = tuple(fields["degraded"])
    return TokenEvent(**fields) if data["type"] == "token" else FinishEvent(**fields)
