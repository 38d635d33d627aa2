"""From two folders of runs to what changed between them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tocsin.chaos.case import Case
from tocsin.chaos.compare.meaning import TOLERANCE
from tocsin.chaos.compare.model import (
    Comparison,
    FaultChange,
    FaultReading,
    PhaseChange,
    PhaseReading,
    PropertyChange,
    Side,
)
from tocsin.chaos.compare.paired import paired_ratios
from tocsin.chaos.compare.worse import fault_change, property_change, worsenings
from tocsin.chaos.report.model import PhaseRow, Span
from tocsin.chaos.report.samples import phases_of, samples_of
from tocsin.chaos.report.view import phase_spans, with_bounds
from tocsin.chaos.report.wording import flat_facts
from tocsin.chaos.spec import Experiment
from tocsin.chaos.store import load_case, read_verdict, spec_document
from tocsin.core.errors import SpecError

_PHASES = ("whole run", "before", "during", "after")


def compare_runs(a: Path, b: Path, tolerance: float = TOLERANCE) -> Comparison:
    """Compare two recorded runs.

    Args:
        a, b: their folders; B is asked about.
        tolerance: share by which a time may grow unremarked.

    Raises:
        SpecError: one of them holds no whole run.
    """
    case_a, told_a = _recorded(a)
    case_b, told_b = _recorded(b)
    side_a, side_b = _side(a, case_a, told_a), _side(b, case_b, told_b)
    same_plan = side_a.plan_digest == side_b.plan_digest
    spans = phase_spans(case_a)
    paired = (
        paired_ratios(case_a.records, case_b.records, spans, case_a.t_start_ns) if same_plan else ()
    )
    properties = _properties(told_a, told_b)
    faults = _faults(told_a, told_b, tolerance)
    return Comparison(
        a=side_a,
        b=side_b,
        same_plan=same_plan,
        differences=_differences(case_a.spec, case_b.spec),
        properties=properties,
        faults=faults,
        phases=_phases(case_a, case_b),
        paired=paired,
        worse=worsenings(
            side_a,
            side_b,
            properties,
            [(one.id, one.change, one.reasons) for one in faults],
            paired,
            tolerance,
        ),
        tolerance=tolerance,
    )


def _recorded(run_dir: Path) -> tuple[Case, Mapping[str, Any]]:
    case = with_bounds(load_case(run_dir))
    try:
        return case, read_verdict(run_dir)
    except (OSError, ValueError) as error:
        raise SpecError(
            f"{run_dir}: has no verdict that can be read ({error}), expected verdict.json; "
            f"judge it again: tocsin chaos check {run_dir}"
        ) from None


def _side(run_dir: Path, case: Case, told: Mapping[str, Any]) -> Side:
    return Side(
        run=f"{run_dir.parent.name}/{run_dir.name}",
        run_dir=str(run_dir),
        experiment=case.spec.name,
        verdict=str(told.get("verdict", "unknown")),
        exit_code=int(told.get("exit_code", -1)),
        sentence=str(told.get("sentence", "")),
        seed=case.plan.seed,
        plan_digest=case.plan.digest,
        engine=str(told.get("engine", "")),
        model=str(told.get("model", "")),
        profile=str(told.get("profile", "")),
        length_s=(case.t_end_ns - case.t_start_ns) / 1e9,
        requests=int(told.get("requests", 0)),
        tokens=int(told.get("tokens", 0)),
        silent_corruptions=int(told.get("silent_corruptions", 0)),
        lost=int(told.get("lost", 0)),
        duplicated=int(told.get("duplicated", 0)),
        false_alarms=int(told.get("false_alarms", 0)),
        availability=told.get("availability"),
    )


def _differences(a: Experiment, b: Experiment) -> tuple[tuple[str, str, str], ...]:
    """Settings that the two experiments do not share; faults by their ids."""
    facts_a, facts_b = _facts(a), _facts(b)
    names = [*facts_a, *(name for name in facts_b if name not in facts_a)]
    return tuple(
        (name, facts_a.get(name, "–"), facts_b.get(name, "–"))
        for name in names
        if facts_a.get(name) != facts_b.get(name)
    )


def _facts(spec: Experiment) -> dict[str, str]:
    """Settings by their dotted names; of a fault or a check only what is not the default."""
    listed = ("faults", "checks")
    left_out = ("hypothesis", "apiVersion", "kind", *listed)
    document = spec_document(spec)
    found = dict(flat_facts({key: document[key] for key in document if key not in left_out}))
    written = spec_document(spec, whole=False)
    for key in listed:
        for one in written.get(key) or ():
            rest = {name: value for name, value in one.items() if name != "id"}
            said = ", ".join(f"{name} {value}" for name, value in flat_facts(rest))
            found[f"{key}.{one['id']}"] = said or "there"
    return found


def _properties(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[PropertyChange, ...]:
    """Changed ones first, the worse before the better."""
    of_a, of_b = _by_id(a, "properties"), _by_id(b, "properties")
    rows = []
    for name in _names(of_a, of_b):
        one, other = of_a.get(name, {}), of_b.get(name, {})
        verdicts = str(one.get("verdict", "")), str(other.get("verdict", ""))
        rows.append(
            PropertyChange(
                id=name,
                a=verdicts[0],
                b=verdicts[1],
                violations_a=int(one.get("violations", 0)),
                violations_b=int(other.get("violations", 0)),
                first=str(other.get("first") or other.get("reason") or ""),
                change=property_change(*verdicts),
            )
        )
    return tuple(sorted(rows, key=lambda row: _ORDER.index(row.change)))


def _faults(
    a: Mapping[str, Any], b: Mapping[str, Any], tolerance: float
) -> tuple[FaultChange, ...]:
    of_a, of_b = _by_id(a, "faults"), _by_id(b, "faults")
    rows = []
    for name in _names(of_a, of_b):
        one, other = (_reading(found.get(name)) for found in (of_a, of_b))
        change, reasons = fault_change(one, other, tolerance)
        kind = str((of_b.get(name) or of_a[name]).get("kind", ""))
        rows.append(FaultChange(name, kind, one, other, change, reasons))
    return tuple(sorted(rows, key=lambda row: _ORDER.index(row.change)))


_ORDER = ("worse", "only in A", "only in B", "better", "same")


def _reading(told: Mapping[str, Any] | None) -> FaultReading | None:
    if told is None:
        return None
    return FaultReading(
        planned=int(told.get("planned", 0)),
        fired=int(told.get("fired", 0)),
        detected=int(told.get("detected", 0)),
        healed=int(told.get("healed", 0)),
        mttd_ms_p50=told.get("mttd_ms_p50"),
        mttd_ms_p99=told.get("mttd_ms_p99"),
        recover_ms_max=told.get("recover_ms_max"),
    )


def _phases(a: Case, b: Case) -> tuple[PhaseChange, ...]:
    rows_a, rows_b = _phase_rows(a), _phase_rows(b)
    return tuple(
        PhaseChange(name, rows_a.get(name), rows_b.get(name))
        for name in _PHASES
        if name in rows_a or name in rows_b
    )


def _phase_rows(case: Case) -> dict[str, PhaseReading]:
    """Each phase of a run, and the whole of it."""
    samples = samples_of(case.records, case.t_start_ns)
    end_s = (case.t_end_ns - case.t_start_ns) / 1e9 + 1e-6
    spans = [Span(0.0, end_s, "whole run", "")]
    spans += [one for one in phase_spans(case) if one.state != "whole run"]
    rows = phases_of(case.records, samples, spans, case.t_start_ns)
    return {row.name: _phase(row) for row in rows}


def _phase(row: PhaseRow) -> PhaseReading:
    return PhaseReading(
        requests=row.requests,
        failed_share=row.failed / row.requests if row.requests else None,
        degraded_share=row.degraded / row.requests if row.requests else None,
        ttft_ms_p50=row.ttft_p50_ms,
        ttft_ms_p99=row.ttft_p99_ms,
        gap_ms_p50=row.gap_p50_ms,
        gap_ms_p99=row.gap_p99_ms,
        tokens_per_s=row.tokens_per_s,
    )


def _by_id(told: Mapping[str, Any], key: str) -> dict[str, Mapping[str, Any]]:
    return {str(one["id"]): one for one in told.get(key) or () if "id" in one}


def _names(a: Mapping[str, Any], b: Mapping[str, Any]) -> Sequence[str]:
    return [*a, *(name for name in b if name not in a)]
