"""From the recorded run of a kind to the counts of its row."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from tocsin.chaos.attribution import Attribution, attribute, window_ns
from tocsin.chaos.case import Case, OccurrenceRecord, Violation
from tocsin.chaos.contract import Fault, properties
from tocsin.chaos.judge import judge_properties
from tocsin.chaos.matrix.document import Conclusion, Part, Row, Where
from tocsin.chaos.matrix.trial import Trial
from tocsin.chaos.steady import percentile

HARM = (
    "golden.tokens",
    "stream.prefix",
    "exec.no_duplicate_effect",
    "isolation.canary",
    "lifecycle.no_lost",
    "lifecycle.exactly_one_terminal",
)
"""Properties of what reaches a user. Others, of load and recovery, need a longer run."""
_STALL = "service.heartbeat"
_ERRORS_MOST = 5


def count(case: Case, trial: Trial, *, where: Where, code: str, cpu_s: float = 0.0) -> Part:
    """What one run says of one kind.

    Args:
        code: digest of the sources that ran.
    """
    found = attribute(case)
    mine = [one for one in case.occurrences if one.planned.kind == trial.kind]
    alone = len(mine) == len(case.occurrences)
    first = [found.first_expected(one.planned.id) for one in mine]
    latencies = [one.latency_ms for one in first if one is not None and one.latency_ms is not None]
    errors = [f"{one.planned.id}: {one.error}" for one in mine if one.error and not one.healed]
    if case.aborted:
        errors.insert(0, f"the run was stopped: {case.aborted}")
    return Part(
        kind=trial.kind,
        number=trial.number,
        where=where,
        seed=trial.seed,
        model=str(case.facts.get("sim_model", case.facts.get("model", ""))),
        plan_digest=case.plan.digest,
        code=code,
        planned=len(mine),
        fired=sum(one.fired for one in mine),
        verified=sum(one.verified for one in mine),
        healed=sum(one.healed for one in mine),
        seen=sum(_seen_in_time(one, found) for one in mine),
        detectors=_detectors(mine, found),
        latencies_ms=tuple(round(one, 3) for one in latencies),
        false_alarms=_false_alarms(found, case, trial.kind),
        harm=_harm(case, mine, alone=alone),
        errors=tuple(errors[:_ERRORS_MOST]),
        requests=len(case.records),
        cpu_s=round(cpu_s, 2),
    )


def row_of(declared: Fault, parts: Sequence[Part], recall_least: float) -> Row:
    """The parts of a kind added up, and what they come to."""

    def total(name: str) -> int:
        return sum(getattr(one, name) for one in parts)

    latencies = [value for one in parts for value in one.latencies_ms]
    fired = total("fired")
    row = Row(
        kind=declared.id,
        where=parts[0].where,
        priority=str(declared.priority),
        expected=declared.expect,
        conclusion=Conclusion.CAUGHT,
        planned=total("planned"),
        fired=fired,
        verified=total("verified"),
        healed=total("healed"),
        seen=total("seen"),
        recall=total("seen") / fired if fired else None,
        mttd_ms_p50=percentile(latencies, 0.5),
        mttd_ms_p99=percentile(latencies, 0.99),
        detectors=_added(one.detectors for one in parts),
        false_alarms=_added(one.false_alarms for one in parts),
        harm=_added(one.harm for one in parts),
        requests=total("requests"),
        cpu_s=round(sum(one.cpu_s for one in parts), 2),
    )
    conclusion, why = _concluded(row, parts, recall_least)
    return row.model_copy(update={"conclusion": conclusion, "why": why})


def not_run(declared: Fault, why: str) -> Row:
    """The row of a kind that was not tried."""
    return Row(
        kind=declared.id,
        where=Where.NOWHERE,
        priority=str(declared.priority),
        expected=declared.expect,
        conclusion=Conclusion.NOT_RUN,
        why=why,
    )


def _concluded(row: Row, parts: Sequence[Part], recall_least: float) -> tuple[Conclusion, str]:
    """The worst that is true of a row, in words."""
    errors = [error for one in parts for error in one.errors]
    said = f": {errors[0]}" if errors else ""
    if row.harm:
        return Conclusion.HARM, f"violated: {_listed(row.harm)}"
    if row.healed < row.fired:
        return Conclusion.HARM, f"{row.fired - row.healed} were not shown to be healed{said}"
    if not row.planned or row.verified < row.planned:
        left = row.planned - row.verified
        return Conclusion.INVALID, f"{left} of {row.planned} did not fire{said}"
    if not row.expected:
        return Conclusion.UNWATCHED, "it names no detector"
    if not any(row.detectors.get(name) for name in row.expected):
        others = f", only by {_listed(row.detectors)}" if row.detectors else ""
        return Conclusion.EMPTY, f"not seen by {' or '.join(row.expected)}{others}"
    if row.recall is None or row.recall < recall_least:
        return Conclusion.WEAK, f"{row.seen} of {row.fired} were seen in time"
    if row.false_alarms:
        return Conclusion.WEAK, f"alarms without a fault: {_listed(row.false_alarms)}"
    return Conclusion.CAUGHT, ""


def _seen_in_time(one: OccurrenceRecord, found: Attribution) -> bool:
    first = found.first_expected(one.planned.id)
    limit_ms = one.planned.expect.within_s * 1e3
    return first is not None and first.latency_ms is not None and first.latency_ms <= limit_ms


def _detectors(mine: Sequence[OccurrenceRecord], found: Attribution) -> dict[str, int]:
    seen: Counter[str] = Counter()
    for one in mine:
        seen.update({alarm.detector for alarm in found.by_occurrence.get(one.planned.id, ())})
    return dict(sorted(seen.items()))


def _false_alarms(found: Attribution, case: Case, kind: str) -> dict[str, int]:
    """As `detection.matrix` counts them: a replica that did stall is no false alarm.

    In a run of several kinds they are the affair of the kind that was ordered last before them.
    """
    ordered = sorted(
        (one for one in case.occurrences if one.ordered_ns), key=lambda one: one.ordered_ns
    )
    counts: Counter[str] = Counter()
    for alarm in found.false_alarms:
        before = [one for one in ordered if one.ordered_ns <= alarm.t_ns] or ordered[:1]
        if before and before[-1].planned.kind == kind and alarm.detector != _STALL:
            counts[alarm.detector] += 1
    return dict(sorted(counts.items()))


def _harm(case: Case, mine: Sequence[OccurrenceRecord], *, alone: bool) -> dict[str, int]:
    """Violations by property; of a run of several kinds, those while one of mine was at work."""
    known = properties()
    records = {record.request_id: record for record in case.records}

    def is_mine(violation: Violation) -> bool:
        record = records.get(violation.request_id)
        if alone or record is None:
            return True
        end_ns = record.t_end_ns or case.t_end_ns
        return any(
            record.t_invoke_ns <= window_ns(one)[1] and window_ns(one)[0] <= end_ns
            for one in mine
            if one.fired
        )

    judged = judge_properties(case, {name: known[name] for name in HARM if name in known})
    counts = {one.id: sum(map(is_mine, one.violations)) for one in judged}
    return {name: number for name, number in counts.items() if number}


def _added(several: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for one in several:
        total.update(one)
    return dict(sorted(total.items()))


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {number}" for name, number in counts.items())
