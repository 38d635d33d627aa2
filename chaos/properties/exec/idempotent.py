"""What is sent under one key is executed once."""

from collections import defaultdict

from tocsin.chaos.case import Case, PropertyVerdict, Violation, conclude
from tocsin.chaos.contract import prop
from tocsin.core.history import Outcome, RequestRecord


@prop(
    "exec.idempotent",
    sins=("executed_twice",),
    advice="look at ray_jobs/idempotency.py: who made the second execution, and whether both "
    "copies reached one gateway",
    conditional=True,
)
def judge(case: Case) -> PropertyVerdict:
    """Of all answers under one Idempotency-Key one was executed, and the others are the same.

    The same: tokens, text and finish reason. Judged are keys with at least two whole answers.
    """
    by_key: dict[str, list[RequestRecord]] = defaultdict(list)
    for record in case.honest:
        request = case.requests.get(record.request_id)
        if request is not None and request.idempotency_key and record.outcome is Outcome.OK:
            by_key[request.idempotency_key].append(record)
    checked = 0
    violations: list[Violation] = []
    for key, records in by_key.items():
        if len(records) < 2:
            continue
        checked += len(records)
        reason = _reason(records)
        if reason:
            names = [one.request_id for one in records]
            violations.append(
                Violation(f"{key}: {reason}", request_id=names[-1], evidence={"requests": names})
            )
    return conclude(judge.id, checked, violations, nothing="no request was sent twice under a key")


def _reason(records: list[RequestRecord]) -> str:
    """What is wrong with the answers of one key; empty: nothing."""
    executed = sum(not one.replayed for one in records)
    if executed != 1:
        return f"{executed} of {len(records)} answers say that they were executed, expected one"
    answers = {(one.tokens, one.text, one.finish_reason) for one in records}
    return f"found {len(answers)} different answers, expected one" if len(answers) > 1 else ""
