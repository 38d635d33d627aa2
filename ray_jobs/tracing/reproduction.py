"""A reproduction as a span, linked to the request whose failure it repeats."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tocsin.core.clock import Clock, SystemClock
from tocsin.ray_jobs.tracing import names
from tocsin.ray_jobs.tracing.context import TraceContext, new_span_id, new_trace_id, parse
from tocsin.ray_jobs.tracing.pipeline import Tracing
from tocsin.ray_jobs.tracing.record import SpanRecord

_CLOSE_S = 1.0


def tell_reproduction(
    folder: Path,
    facts: Mapping[str, Any],
    result: str,
    began_ns: int,
    *,
    clock: Clock | None = None,
) -> None:
    """Write the span of a reproduction that has just been run; never raises for a full disk.

    Args:
        folder: of span files.
        facts: of the failure: `failure_id`, `check`, `operator`, and its request's ids, if any.
        result: one of `core.metrics.REPRO_RESULTS`.
        began_ns: monotonic nanoseconds.
    """
    time = clock or SystemClock()
    tracing = Tracing(folder, "reproduction", clock=time)
    victim = parse(f"00-{facts.get('trace_id') or ''}-{facts.get('span_id') or ''}-01")
    record = SpanRecord(
        names.REPRODUCE,
        TraceContext(new_trace_id(), new_span_id(), sampled=True),
        None,
        began_ns,
        time.now_ns(),
        attributes={
            names.CHECK_ID: str(facts.get("failure_id", "")),
            names.CHECK_NAME: str(facts.get("check", "")),
            "operator": str(facts.get("operator", "")),
            names.OUTCOME: result,
        },
        links=() if victim is None else (victim,),
    )
    if result == "error":
        record.error = "the reproduction could not be run"
    tracing.export((record,))
    tracing.close(_CLOSE_S)
