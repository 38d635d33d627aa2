"""The service does what is expected about a fault, and nothing wider."""

from collections.abc import Sequence

from tocsin.chaos.attribution import subject
from tocsin.chaos.case import Case, OccurrenceRecord, PropertyVerdict, Violation, conclude
from tocsin.chaos.contract import prop
from tocsin.chaos.reactions import REACTIONS, words
from tocsin.core.faulting import Scope
from tocsin.core.history import SHED, Event, EventKind, Outcome, RequestRecord

_SKEW_NS = 50_000_000
_BY_OTHERS = frozenset({EventKind.REPLICA_UP, EventKind.REQUEST_RESUMED})
"""What another replica, or the gateway, does about a fault of one."""


@prop(
    "reaction.as_expected",
    sins=("missing_reaction", "wide_reaction"),
    advice="compare the events of that replica from injection to recovery with what the fault's "
    "row in the catalogue expects",
)
def judge(case: Case) -> PropertyVerdict:
    """Each fault's stated reaction happened, and no request was refused that it had not touched.

    Touched: named by the evidence or an alarm, or at work on the struck replica between injection
    and recovery; a request that no replica took may be refused meanwhile. Malformed requests
    touch nobody else. Which reactions can be named stands in `chaos/reactions.py`.
    """
    fired = [record for record in case.occurrences if record.fired]
    violations: list[Violation] = []
    unknown: list[str] = []
    stated = 0
    for record in fired:
        for name in words(record.planned.expect.reaction):
            stated += 1
            if name not in REACTIONS:
                known = ", ".join(REACTIONS)
                unknown.append(f"{record.planned.id}: reaction {name!r} is none of {known}")
            elif not _happened(case, record, name):
                text = f"{record.planned.id}: {name} did not follow"
                violations.append(Violation(text, occurrence=record.planned.id))
    if fired:
        violations += [_too_wide(one) for one in case.honest if _untouched(case, one, fired)]
    none = "no occurrence states its reaction: only that nothing wider happened was judged"
    return conclude(
        judge.id,
        len(fired),
        violations,
        unknown="; ".join(unknown),
        nothing="no fault fired",
        notes=() if stated or not fired else (none,),
    )


def _window(record: OccurrenceRecord) -> tuple[int, int]:
    """From injection until service must be steady again."""
    expect = record.planned.expect
    end_ns = record.healed_ns or 2**62
    slack_ns = int(max(expect.within_s, expect.recover_within_s) * 1e9)
    return record.fired_ns - _SKEW_NS, end_ns + slack_ns


def _happened(case: Case, record: OccurrenceRecord, name: str) -> bool:
    if record.planned.scope is Scope.CLIENT and record.evidence is not None:
        mine = set(record.evidence.requests)
        refused = [one for one in case.records if one.request_id in mine]
        if name == "reject" and any(400 <= one.http_status < 500 for one in refused):
            return True
        if name == "shed_load" and any(one.http_status in SHED for one in refused):
            return True
    start_ns, end_ns = _window(record)
    return any(
        REACTIONS[name](event) and _concerns(event, record)
        for event in case.events
        if start_ns <= event.t_ns <= end_ns
    )


def _concerns(event: Event, record: OccurrenceRecord) -> bool:
    return event.kind in _BY_OTHERS or subject(event) == record.replica


def _untouched(case: Case, record: RequestRecord, fired: Sequence[OccurrenceRecord]) -> bool:
    """Whether it was refused although no fault can have reached it."""
    if record.outcome is not Outcome.FAIL or record.http_status in SHED:
        return False  # who is turned away for want of room is the affair of overload.fair
    return not any(_touches(one, record, case.t_end_ns) for one in fired)


def _touches(one: OccurrenceRecord, record: RequestRecord, run_end_ns: int) -> bool:
    if one.evidence is not None and record.request_id in one.evidence.requests:
        return True
    if one.planned.scope is Scope.CLIENT:
        return False
    start_ns, end_ns = _window(one)
    overlaps = record.t_invoke_ns <= end_ns and start_ns <= (record.t_end_ns or run_end_ns)
    return overlaps and (not record.attempts or one.replica in record.attempts)


def _too_wide(record: RequestRecord) -> Violation:
    where = ", ".join(record.attempts) or "no replica"
    return Violation(
        f"{record.request_id}: was refused on {where}, where no fault was active: {record.error}",
        request_id=record.request_id,
        evidence={"failure_id": record.failure_id, "attempts": list(record.attempts)},
    )
