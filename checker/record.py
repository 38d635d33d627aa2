"""The journal record of a failure: one flat JSON object that a person can search."""

import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tocsin.checker.journal import Admission, plain_json
from tocsin.checker.journal.files import stamp
from tocsin.checker.surroundings import Surroundings, chaos_run
from tocsin.core.terms import Priority
from tocsin.core.verdict import Failure, Finding

_FRAMES_MAX = 6


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
    admission: Admission,
    surroundings: Surroundings,
    described: Mapping[str, Any] | None = None,
    snapshot: str = "",
    snapshot_note: str = "",
    error: Exception | None = None,
) -> dict[str, Any]:
    """Everything about a failure that exists at the moment of its recording.

    Args:
        kind: of the step, "prefill" or "decode".
        backend: attention backend of the first run; settled_on: of the last.
        duration_ms: from the verdict to the settlement.
        admission: what the journal does with the record.
        described: shapes, dtypes, device and statistics of the first failing call.
        snapshot: folder of its calls, below the journal's; snapshot_note: why there is none.
        error: what a run raised, None when none did.
    """
    worst = min(failure.findings, key=lambda finding: finding.priority, default=None)
    first = failure.findings[0] if failure.findings else None
    request_id = failure.request_ids[0] if failure.request_ids else ""
    trace_id, span_id = surroundings.trace(request_id)
    call = described or {}
    record = {
        "ts": stamp(wall_s),
        "mark": "[CHECK]",
        "row": "failure",
        "failure_id": failure.failure_id,
        "trace_id": trace_id,
        "span_id": span_id,
        "request_id": request_id,
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
        "shapes": call.get("shapes", {}),
        "dtypes": call.get("dtypes", {}),
        "device": call.get("device", ""),
        "code": code_of(first, error),
        "business_impact": first.impact if first else "answers come from the fallback backend",
        "suppressed_since_last": admission.suppressed,
        "sampled_full": admission.full,
        "snapshot": snapshot,
        "snapshot_note": snapshot_note,
        "tensors": call.get("tensors", {}),
        "seed": surroundings.seed(request_id),
        "chaos_run": chaos_run(),
        "findings": [_finding(finding) for finding in failure.findings],
        "cause": str(failure.cause),
        "action": str(failure.action),
        "pages": failure.pages,
        "runs": failure.runs,
        "backend": backend,
        "settled_on": settled_on,
        "duration_ms": round(duration_ms, 3),
        "error": f"{type(error).__name__}: {error}" if error is not None else "",
        "stack": stack_of(error),
        "environment": surroundings.environment(),
    }
    plain: dict[str, Any] = plain_json(record)
    return plain


def code_of(first: Finding | None, error: Exception | None) -> str:
    """What identical failures share: the check that alarmed first, or the kind of exception."""
    return first.check if first is not None else type(error).__name__


def stack_of(error: Exception | None) -> list[str]:
    """The innermost frames of an exception, `folder/file.py:12 function`, the innermost last."""
    if error is None:
        return []
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES_MAX:]
    return [
        f"{'/'.join(Path(frame.filename).parts[-2:])}:{frame.lineno} {frame.name}"
        for frame in frames
    ]


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
