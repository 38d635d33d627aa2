"""From a recorded run to its verdict: properties, budget, validity, and the oracle's own test."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from tocsin.chaos.attribution import Attribution, attribute
from tocsin.chaos.case import Case, Conclusion, OccurrenceRecord, PropertyVerdict
from tocsin.chaos.contract import Property, properties
from tocsin.chaos.examine import Examined, examine_all, examine_one
from tocsin.chaos.selftest import sin_results
from tocsin.chaos.steady import (
    Timeline,
    availability,
    percentile,
    probe_readings,
    recovered_after_s,
)
from tocsin.chaos.verdict import FaultSummary, RunVerdict, SinResult, exit_code_of, worst
from tocsin.core.history import Outcome

__all__ = ["Case", "Examiner", "PropertyVerdict", "judge", "judge_properties"]

Examiner = Callable[[Case, Mapping[str, Property]], Mapping[str, Examined]]
"""Judges and tests each of the properties; by id, in the order in which they were given."""

_WORST = ("isolation.canary", "golden.tokens", "stream.prefix", "lifecycle.no_lost")


def judge(
    case: Case,
    units: Mapping[str, Property] | None = None,
    examiner: Examiner = examine_all,
) -> RunVerdict:
    """Judge a run; a pure function of what was recorded.

    Args:
        case: the recorded run.
        units: properties by id; None: those that the spec names, all when it names none.
        examiner: who judges the properties: this process, or one of its own for each.
    """
    chosen = _chosen(case) if units is None else units
    examined = examiner(case, chosen)
    strict = tuple(one.verdict for one in examined.values())
    verdicts = tuple(_within_budget(case, one) for one in strict)
    sins = sin_results(chosen, {name: one.objections for name, one in examined.items()})
    invalid = _why_invalid(case, sins)
    unhealed = _unhealed(case)
    counted = tuple(one for one in verdicts if _counts(case, chosen[one.id], one))
    conclusion = worst(
        [one.conclusion for one in counted] + ([Conclusion.INVALID] if invalid else [])
    )
    named = _named(conclusion, case, unhealed)
    attribution = attribute(case)
    by_id = {one.id: one for one in strict}
    silent = _silent(by_id)
    reasons = tuple(unhealed) + ((f"aborted: {case.aborted}",) if case.aborted else ())
    reasons += tuple(invalid) + _why_unknown(counted)
    return RunVerdict(
        conclusion=named,
        exit_code=exit_code_of(conclusion, aborted=bool(case.aborted), unhealed=bool(unhealed)),
        sentence=_sentence(named, verdicts, reasons, case),
        reasons=reasons,
        seed=case.plan.seed,
        plan_digest=case.plan.digest,
        engine=str(case.facts.get("engine", "")),
        model=str(case.facts.get("model", case.spec.system.model)),
        profile=str(case.facts.get("profile", case.spec.system.profile)),
        requests=len(case.records),
        tokens=sum(len(record.chunks) for record in case.records),
        silent_corruptions=len(silent),
        lost=_count(by_id, "lifecycle.no_lost"),
        duplicated=_count(by_id, "exec.no_duplicate_effect"),
        availability=availability(case.records),
        false_alarms=len({one.event_index for one in attribution.false_alarms}),
        properties=verdicts,
        faults=_faults(case, attribution, silent),
        self_test=sins,
        detections=attribution.detections,
    )


def judge_properties(case: Case, units: Mapping[str, Property]) -> tuple[PropertyVerdict, ...]:
    """The verdict of each property; one that breaks is unknown for itself only."""
    return tuple(examine_one(case, unit) for unit in units.values())


def _counts(case: Case, unit: Property, verdict: PropertyVerdict) -> bool:
    """Whether the run answers for a verdict.

    A conditional property that had nothing to look at is shown, and counts only if the experiment
    names it: whoever asks for it gets an answer.
    """
    if verdict.conclusion is not Conclusion.VACUOUS or not unit.conditional:
        return True
    return any(check.id == unit.id for check in case.spec.checks)


def _within_budget(case: Case, verdict: PropertyVerdict) -> PropertyVerdict:
    """Let as many violations pass as the experiment's budget allows, and say so."""
    budget = case.spec.budget
    allowed = {
        "golden.tokens": budget.silent_corruption,
        "lifecycle.no_lost": budget.lost,
        "exec.no_duplicate_effect": budget.duplicated,
    }.get(verdict.id, 0)
    count = len(verdict.violations)
    if not 0 < count <= allowed:
        return verdict
    note = f"{count} violations, the budget allows {allowed}: {verdict.violations[0].message}"
    return replace(verdict, conclusion=Conclusion.PASS, violations=(), notes=(*verdict.notes, note))


def _chosen(case: Case) -> dict[str, Property]:
    known = properties()
    wanted = [check.id for check in case.spec.checks] or list(known)
    return {name: known[name] for name in wanted if name in known}


def _why_invalid(case: Case, sins: tuple[SinResult, ...]) -> list[str]:
    """Why the run proves nothing, whatever its properties say."""
    reasons: list[str] = []
    for one in case.occurrences:
        if case.aborted and not one.fired:
            continue
        if not one.fired:
            reasons.append(f"{one.planned.id} did not fire" + (f": {one.error}" * bool(one.error)))
        elif not one.verified:
            reasons.append(f"{one.planned.id} says that it fired and left no evidence")
    honest = case.honest
    ok = sum(record.outcome is Outcome.OK for record in honest)
    if not case.aborted and len(honest) < case.spec.workload.requests:
        wanted = case.spec.workload.requests
        reasons.append(f"the load was not applied: {len(honest)} of {wanted} requests were sent")
    elif not case.aborted and not ok:
        reasons.append("the load was not applied: no request was answered")
    reasons += _not_steady(case)
    missed = [one.sin for one in sins if not one.caught]
    if missed:
        reasons.append(f"the oracle missed sins planted in the history: {', '.join(missed)}")
    return reasons


def _not_steady(case: Case) -> list[str]:
    """Why the baseline before the faults was not steady."""
    if not case.warmup:
        return [] if case.aborted else ["the baseline is not known: no warm-up request was sent"]
    wrong = []
    for record in case.warmup:
        golden = case.golden.get(record.prompt_id)
        if record.outcome is not Outcome.OK:
            wrong.append(f"{record.request_id} ended {record.outcome} {record.error}".strip())
        elif golden is None or golden.tokens != record.tokens:
            wrong.append(f"{record.request_id} is not golden")
    reasons = [f"the baseline was not steady before the faults: {wrong[0]}"] if wrong else []
    for probe, found in probe_readings(case, "before"):
        if found is None or not probe.holds(found):
            said = "has no data" if found is None else f"reads {found:.4g}"
            reasons.append(f"the baseline was not steady: probe {probe.name} {said}")
    return reasons


def _unhealed(case: Case) -> list[str]:
    return [
        f"{one.planned.id} was not shown to be healed ({one.state}) {one.error}".strip()
        for one in case.occurrences
        if one.fired and not one.healed
    ]


def _why_unknown(verdicts: tuple[PropertyVerdict, ...]) -> tuple[str, ...]:
    return tuple(
        f"{one.id} is {one.conclusion}: {one.reason}"
        for one in verdicts
        if one.conclusion in (Conclusion.UNKNOWN, Conclusion.VACUOUS)
    )


def _named(conclusion: Conclusion, case: Case, unhealed: list[str]) -> Conclusion:
    """A violation names the run; otherwise what may still be broken, then why it stopped."""
    if conclusion is Conclusion.FAIL:
        return conclusion
    if unhealed:
        return Conclusion.UNHEALED
    return Conclusion.ABORTED if case.aborted else conclusion


def _sentence(
    conclusion: Conclusion,
    verdicts: tuple[PropertyVerdict, ...],
    reasons: tuple[str, ...],
    case: Case,
) -> str:
    """One sentence for people."""
    if conclusion is Conclusion.FAIL:
        failed = [one for one in verdicts if one.conclusion is Conclusion.FAIL]
        broken = min(failed, key=lambda one: worst_first(one.id))
        more = sum(len(one.violations) for one in verdicts) - 1
        also = f" (and {more} more violation{'s' if more > 1 else ''})" if more else ""
        return f"{broken.id} was violated: {broken.violations[0].message}{also}"
    if conclusion is Conclusion.PASS:
        fired = sum(one.fired for one in case.occurrences)
        return (
            f"{fired} faults fired, were seen and healed; "
            f"{len(case.records)} requests, no wrong answer got out"
        )
    return reasons[0] if reasons else f"the run is {conclusion}"


def worst_first(property_id: str) -> int:
    """Rank of a violation for its reader: what reached a user comes before what was missed."""
    return _WORST.index(property_id) if property_id in _WORST else len(_WORST)


def _silent(by_id: Mapping[str, PropertyVerdict]) -> set[str]:
    """Requests that were completed, unlabelled and wrong."""
    golden = by_id.get("golden.tokens")
    found = golden.violations if golden else ()
    return {one.request_id for one in found if one.evidence.get("silent")}


def _count(by_id: Mapping[str, PropertyVerdict], property_id: str) -> int:
    return len(by_id[property_id].violations) if property_id in by_id else 0


def _faults(case: Case, found: Attribution, silent: set[str]) -> tuple[FaultSummary, ...]:
    """One row a fault of the spec."""
    timeline = Timeline.of(case.records)
    return tuple(
        _summary(
            case,
            fault.id,
            fault.kind,
            [one for one in case.occurrences if one.planned.fault == fault.id],
            found,
            silent,
            timeline,
        )
        for fault in case.spec.faults
    )


def _summary(
    case: Case,
    fault_id: str,
    kind: str,
    mine: list[OccurrenceRecord],
    found: Attribution,
    silent: set[str],
    timeline: Timeline,
) -> FaultSummary:
    detectors: dict[str, int] = {}
    latencies: list[float] = []
    touched: set[str] = set()
    recoveries: list[float] = []
    detected = 0
    steady = case.spec.steady_state
    for record in mine:
        if record.evidence is not None:
            touched.update(record.evidence.requests)
        for one in found.by_occurrence.get(record.planned.id, ()):
            detectors[one.detector] = detectors.get(one.detector, 0) + 1
            touched.update(one.requests)
        first = found.first_expected(record.planned.id)
        if first is not None and first.latency_ms is not None:
            latencies.append(first.latency_ms)
            detected += first.latency_ms <= record.planned.expect.within_s * 1e3
        took_s = (
            recovered_after_s(
                timeline, record.healed_ns, case.t_end_ns, steady.window_s, steady.good_windows
            )
            if record.healed and record.healed_ns
            else None
        )
        if took_s is not None:
            recoveries.append(took_s * 1e3)
    return FaultSummary(
        id=fault_id,
        kind=kind,
        planned=len(mine),
        fired=sum(one.fired for one in mine),
        verified=sum(one.verified for one in mine),
        detected=detected,
        healed=sum(one.healed for one in mine),
        required=any(one.planned.expect.detect == "required" for one in mine),
        detectors=dict(sorted(detectors.items())),
        mttd_ms_p50=percentile(latencies, 0.5),
        mttd_ms_p99=percentile(latencies, 0.99),
        touched=len(touched),
        silent=len(touched & silent),
        recover_ms_max=max(recoveries, default=None),
    )
