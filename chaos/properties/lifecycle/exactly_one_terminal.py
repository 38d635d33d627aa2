"""Every request ends once."""

from tocsin.chaos.case import Case, PropertyVerdict, Violation, conclude
from tocsin.chaos.contract import prop
from tocsin.core.history import Outcome, RequestRecord


@prop(
    "lifecycle.exactly_one_terminal",
    sins=("drop_terminal", "second_terminal"),
    advice="find who closes a stream: the gateway must send exactly one last chunk or one error",
)
def judge(case: Case) -> PropertyVerdict:
    """Each request has exactly one end: an answer, an error, a broken connection or a cancel."""
    violations = [
        Violation(f"{record.request_id}: {reason}", request_id=record.request_id)
        for record in case.records
        if (reason := _reason(record)) and not case.cut_off(record)
    ]
    return conclude(judge.id, len(case.records), violations, nothing="no request was sent")


def _reason(record: RequestRecord) -> str:
    match record.outcome:
        case Outcome.OPEN:
            return "has no end at all"
        case Outcome.OK | Outcome.FAIL if record.terminals != 1:
            return f"ended {record.outcome} with {record.terminals} last events, expected one"
        case Outcome.INFO | Outcome.CANCELLED if record.terminals > 1:
            return f"has {record.terminals} last events, expected at most one"
        case Outcome.OK if not record.finish_reason:
            return "ended ok without a finish reason"
        case _:
            return ""
