"""The journal record of a failure: one flat JSON object that a person can search."""

import datetime
from typing import Any

from tocsin.checker.journal import plain_json
from tocsin.core.terms import Priority
from tocsin.core.verdict import Failure, Finding


def failure_record(
    failure: Failure,
    *,
    wall_s: float,
    replica: str,
    model: str,
    kind: str,
    backend: str,
    settled_on: str,
    duration_ms: float,
    error: Exception | None = None,
) -> dict[str, Any]:
    """Everything about a failure that exists at the moment of its recording.

    Args:
        kind: of the step, "prefill" or "decode".
        backend: attention backend of the first run; settled_on: of the last.
        duration_ms: from the verdict to the settlement.
        error: what a run raised, None when none did.
    """
    worst = min(failure.findings, key=lambda finding: finding.priority, default=None)
    first = failure.findings[0] if failure.findings else None
    utc = datetime.datetime.fromtimestamp(wall_s, tz=datetime.UTC)
    record = {
        "ts": utc.isoformat(timespec="milliseconds"),
        "mark": "[CHECK]",
        "failure_id": failure.failure_id,
        "request_id": failure.request_ids[0] if failure.request_ids else "",
        "request_ids": failure.request_ids,
        "model": model,
        "replica": replica,
        "operator": str(first.operator) if first else "attention",
        "layer": str(first.layer) if first else "",
        "check": first.check if first else "",
        "priority": str(worst.priority) if worst else str(Priority.P1),
        "step": failure.step,
        "kind": kind,
        "layer_idx": first.depth if first else None,
        "code": first.check if first else type(error).__name__,
        "business_impact": first.impact if first else "answers come from the fallback backend",
        "findings": [_finding(finding) for finding in failure.findings],
        "cause": str(failure.cause),
        "action": str(failure.action),
        "pages": failure.pages,
        "runs": failure.runs,
        "backend": backend,
        "settled_on": settled_on,
        "duration_ms": round(duration_ms, 3),
        "error": f"{type(error).__name__}: {error}" if error is not None else "",
    }
    plain: dict[str, Any] = plain_json(record)
    return plain


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "check": finding.check,
        "operator": str(finding.operator),
        "layer": str(finding.layer),
        "priority": str(finding.priority),
        "ratio": finding.ratio,
        "module": finding.module,
        "rows": finding.rows,
        "depth": finding.depth,
        "message": finding.message,
        "impact": finding.impact,
    }
