"""The run in the shape of a Chaos Toolkit journal, for tools that read one."""

import datetime
from typing import Any

from tocsin.chaos.attribution import attribute
from tocsin.chaos.case import Case, Conclusion, OccurrenceRecord
from tocsin.chaos.steady import probe_readings
from tocsin.chaos.store import occurrence_document, spec_document
from tocsin.chaos.verdict import RunVerdict

_STATUS = {Conclusion.ABORTED: "aborted", Conclusion.UNHEALED: "failed"}


def journal_document(case: Case, verdict: RunVerdict) -> dict[str, Any]:
    """The journal: experiment, steady states, activities, rollbacks, and how it ended."""
    found = attribute(case)
    return {
        "chaoslib-version": "1.45.0",
        "platform": "tocsin",
        "experiment": {
            "version": "1.0.0",
            "title": case.spec.name,
            "description": case.spec.hypothesis,
            "configuration": spec_document(case.spec),
        },
        "status": _STATUS.get(verdict.conclusion, "completed"),
        "deviated": verdict.conclusion is Conclusion.FAIL,
        "duration": max(0, case.t_end_ns - case.t_start_ns) / 1e9,
        "steady_states": {
            "before": _steady(case, "before"),
            "during": [],
            "after": _steady(case, "after"),
        },
        "run": [
            {
                "activity": {
                    "type": "action",
                    "name": record.planned.id,
                    "provider": {"type": "python", "module": "tocsin.chaos", "func": "inject"},
                },
                "status": "succeeded" if record.verified else "failed",
                "output": occurrence_document(record),
                "detected_by": [
                    one.detector for one in found.by_occurrence.get(record.planned.id, ())
                ],
                **_times(case, record.ordered_ns, record.fired_ns),
            }
            for record in case.occurrences
        ],
        "rollbacks": [_rollback(case, record) for record in case.occurrences if record.fired],
        "start": _utc(case, case.t_start_ns),
        "end": _utc(case, case.t_end_ns),
    }


def _steady(case: Case, phase: str) -> dict[str, Any]:
    probes = [
        {
            "activity": {"type": "probe", "name": probe.name},
            "output": reading,
            "tolerance_met": reading is not None and probe.holds(reading),
        }
        for probe, reading in probe_readings(case, phase)
    ]
    met = all(one["tolerance_met"] for one in probes) if probes else None
    return {"steady_state_met": met, "probes": probes}


def _rollback(case: Case, record: OccurrenceRecord) -> dict[str, Any]:
    return {
        "activity": {"type": "action", "name": f"heal {record.planned.id}"},
        "status": "succeeded" if record.healed else "failed",
        **_times(case, record.fired_ns, record.healed_ns),
    }


def _times(case: Case, start_ns: int, end_ns: int) -> dict[str, Any]:
    return {
        "start": _utc(case, start_ns) if start_ns else None,
        "end": _utc(case, end_ns) if end_ns else None,
    }


def _utc(case: Case, t_ns: int) -> str | None:
    """Wall time of a monotonic one; None when the run did not note how the two relate."""
    offset_ns = case.facts.get("wall_offset_ns")
    if not isinstance(offset_ns, int):
        return None
    return datetime.datetime.fromtimestamp((t_ns + offset_ns) / 1e9, tz=datetime.UTC).isoformat()
