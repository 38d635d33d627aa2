"""Asked for too much, the service turns requests away in words, and starves none that it took."""

from statistics import median

from tocsin.chaos.case import Case, PropertyVerdict, Violation, conclude
from tocsin.chaos.contract import prop
from tocsin.core.history import SHED, Outcome, RequestRecord

TIMES_MEDIAN = 20.0
SECONDS_LEAST = 1.0
FAMILY = "load."
"""Faults of this family ask for too much on purpose."""


@prop(
    "overload.fair",
    sins=("shed_in_silence", "starved_request"),
    advice="look at the queue's order: what was admitted first must be served first, and what "
    "cannot be served must be told when to come again",
    conditional=True,
)
def judge(case: Case) -> PropertyVerdict:
    """Who is turned away gets 429 or 503 with Retry-After; nobody admitted waits out of proportion.

    Judged only where the service had too much to do: it turned somebody away, or a fault of
    family `load` fired. Out of proportion: longer for the first token than `times_median` (20)
    times the median and than `seconds` (1); requests that a fault took the replica from are
    left out. A request that gets no answer at all is lost: see `lifecycle.no_lost`.
    """
    away = [one for one in case.honest if one.http_status in SHED and not one.chunks]
    shed = [one for one in away if one.retry_after is not None]
    crowded = any(one.fired and one.planned.kind.startswith(FAMILY) for one in case.occurrences)
    if not shed and not crowded:
        nothing = "the service was never asked for too much"
        old = "nobody looked for Retry-After in what was turned away"
        return conclude(judge.id, 0, [], nothing=old if away else nothing)
    violations = [
        Violation(f"{one.request_id}: turned away with HTTP {one.http_status} and no Retry-After",
                  request_id=one.request_id)
        for one in shed
        if one.retry_after == ""
    ]  # fmt: skip
    admitted = [one for one in case.honest if one.t_first_ns and not _disturbed(case, one)]
    violations += _starved(case, admitted)
    return conclude(
        judge.id,
        len(shed) + len(admitted),
        violations,
        notes=(f"{len(shed)} requests were turned away, {len(admitted)} admitted ones compared",),
    )


def _starved(case: Case, admitted: list[RequestRecord]) -> list[Violation]:
    if not admitted:
        return []
    params = case.spec.check_params(judge.id)
    waits_s = [_wait_s(record) for record in admitted]
    usual_s = median(waits_s)
    limit_s = max(
        usual_s * params.get("times_median", TIMES_MEDIAN), params.get("seconds", SECONDS_LEAST)
    )
    return [
        Violation(
            f"{record.request_id}: waited {wait_s:.2f} s for its first token, the median is "
            f"{usual_s:.2f} s, expected {limit_s:.2f} s at most",
            request_id=record.request_id,
            evidence={"attempts": list(record.attempts)},
        )
        for record, wait_s in zip(admitted, waits_s, strict=True)
        if wait_s > limit_s
    ]


def _wait_s(record: RequestRecord) -> float:
    return (record.t_first_ns - record.t_invoke_ns) / 1e9


def _disturbed(case: Case, record: RequestRecord) -> bool:
    """Whether a replica, or the way to all of them, was away meanwhile: that fault's wait."""
    if record.outcome is Outcome.OPEN:
        return True
    return any(
        one.fired
        and one.planned.scope.alone
        and record.t_invoke_ns <= (one.healed_ns or case.t_end_ns)
        and one.fired_ns <= record.t_first_ns
        for one in case.occurrences
    )
