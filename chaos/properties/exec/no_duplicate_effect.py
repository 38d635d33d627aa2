"""What was executed more than once reached its client once."""

from collections import Counter

from tocsin.chaos.case import Case, PropertyVerdict, Violation, conclude
from tocsin.chaos.contract import prop


@prop(
    "exec.no_duplicate_effect",
    sins=("duplicate_index", "restart_stream"),
    advice="tokens must be released by (request, index), whatever replica made them",
)
def judge(case: Case) -> PropertyVerdict:
    """No token index reaches a client twice, and no request id is recorded twice."""
    violations: list[Violation] = []
    checked = 0
    ids = Counter(record.request_id for record in case.records)
    violations += [
        Violation(f"{request_id}: recorded {count} times", request_id=request_id)
        for request_id, count in ids.items()
        if count > 1
    ]
    for record in case.records:
        if not record.chunks:
            continue
        checked += 1
        seen = Counter(chunk.index for chunk in record.chunks)
        repeated = sorted(index for index, count in seen.items() if count > 1)
        if repeated:
            violations.append(
                Violation(
                    f"{record.request_id}: index {repeated[0]} arrived {seen[repeated[0]]} times"
                    + (f", and {len(repeated) - 1} more" if len(repeated) > 1 else ""),
                    request_id=record.request_id,
                    evidence={"repeated": repeated, "attempts": list(record.attempts)},
                )
            )
    return conclude(judge.id, checked, violations, nothing="no request received a token")
