"""No request is lost."""

from tocsin.chaos.case import Case, PropertyVerdict, Violation, conclude
from tocsin.chaos.contract import prop
from tocsin.core.history import Outcome


@prop(
    "lifecycle.no_lost",
    sins=("drop_terminal", "answer_to_timeout", "finish_without_end"),
    advice="see which replica had the request and whether the gateway resumed it elsewhere",
)
def judge(case: Case) -> PropertyVerdict:
    """Every request ends before its deadline with an answer or an explicit error.

    A timeout or a broken connection leaves its client not knowing: that is lost, too. Requests
    that were under way when the run itself was stopped are not held against the service.
    """
    violations = [
        Violation(
            f"{record.request_id}: no end within the deadline"
            if record.outcome is Outcome.OPEN
            else f"{record.request_id}: {record.error or 'the connection broke'}",
            request_id=record.request_id,
            evidence={"tokens": len(record.chunks), "attempts": list(record.attempts)},
        )
        for record in case.records
        if record.outcome in (Outcome.OPEN, Outcome.INFO) and not case.cut_off(record)
    ]
    return conclude(judge.id, len(case.records), violations, nothing="no request was sent")
