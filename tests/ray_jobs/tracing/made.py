"""Traces and events as a test makes them: small, with times that are set by hand."""

from pathlib import Path
from typing import Any

from tocsin.core.clock import ManualClock
from tocsin.core.history import Event, EventKind
from tocsin.core.requests import Request
from tocsin.ray_jobs.tracing.context import TraceContext
from tocsin.ray_jobs.tracing.otlp import OtlpDelivery
from tocsin.ray_jobs.tracing.pipeline import Tracing
from tocsin.ray_jobs.tracing.read import Span, spans_in
from tocsin.ray_jobs.tracing.settings import TraceSettings

PARENT = TraceContext(0xAB, 0xCD, sampled=False)


def tracing_in(
    folder: Path,
    *,
    ratio: float = 0.0,
    role: str = "worker",
    clock: ManualClock | None = None,
    otlp: OtlpDelivery | None = None,
    enabled: bool = True,
) -> Tracing:
    settings = TraceSettings(enabled=enabled, ratio=ratio)
    return Tracing(folder, role, replica="r1", settings=settings, clock=clock, otlp=otlp)


def request_of(name: str = "a", parent: TraceContext | None = PARENT) -> Request:
    return Request(name, (1, 2, 3), 8, traceparent=parent.header if parent else "")


def check_failed(*names: str, t_ns: int = 0, failure_id: str = "01FAIL") -> Event:
    """As the announcer tells it, with what a journal record holds."""
    finding = {"check": "state.kv_page_sum", "message": "page 3 changed"}
    record: dict[str, Any] = {
        "failure_id": failure_id,
        "request_ids": list(names),
        "check": "state.kv_page_sum",
        "layer": "state",
        "priority": "P0",
        "operator": "attention",
        "layer_idx": 3,
        "action": "recompute",
        "cause": "state",
        "runs": 2,
        "findings": [finding],
    }
    return Event(EventKind.CHECK_FAILED, t_ns, "r1", 7, data=record)


def written(tracing: Tracing, folder: Path) -> list[Span]:
    """All spans that are on disk, once all that waits is written."""
    assert tracing.flush(10.0)
    return sorted(spans_in(folder), key=lambda span: (span.start_ns, -span.end_ns))
