"""An answer that says that it is whole is whole; any other says why it is not."""

from tocsin.chaos.case import Case, PropertyVerdict, Violation, conclude
from tocsin.chaos.contract import prop
from tocsin.chaos.triage import is_prefix
from tocsin.core.history import NO_ERROR_BODY, Outcome, RequestRecord
from tocsin.core.system import GoldenAnswer


@prop(
    "error.honesty",
    sins=(
        "drop_middle_token",
        "drop_last_token",
        "wrong_finish",
        "truncated_as_success",
        "finish_without_end",
        "refusal_without_words",
    ),
    advice="find who wrote the last event: a stream that was cut must end with an error, "
    "never with a finish reason",
)
def judge(case: Case) -> PropertyVerdict:
    """A finish reason comes with all of its answer and its end; every refusal has its words.

    A stream that is cut and ends as a success is what a client cannot see (TensorRT-LLM#18289).
    Whole means: status 200, as many tokens as the usage says, the end of the stream was seen, and
    no golden token is missing behind it. A connection that breaks without a word is `no_lost`'s.
    """
    checked = 0
    violations: list[Violation] = []
    for record in case.records:
        if case.cut_off(record) or not _says_something(record):
            continue
        checked += 1
        # A labelled answer may have turned a near tie, and so end elsewhere than the golden one.
        comparable = not record.degraded and not record.malformed
        reason = _reason(record, case.golden.get(record.prompt_id) if comparable else None)
        if reason:
            violations.append(
                Violation(
                    f"{record.request_id}: {reason}",
                    request_id=record.request_id,
                    evidence={
                        "http_status": record.http_status,
                        "finish_reason": record.finish_reason,
                        "usage_tokens": record.usage_tokens,
                        "tokens": len(record.chunks),
                    },
                )
            )
    return conclude(judge.id, checked, violations, nothing="no request got an answer or an error")


def _says_something(record: RequestRecord) -> bool:
    return record.outcome in (Outcome.OK, Outcome.FAIL) or (
        record.outcome is not Outcome.CANCELLED and bool(record.finish_reason)
    )


def _reason(record: RequestRecord, golden: GoldenAnswer | None) -> str:
    """What is not true of it; empty when all is."""
    if record.outcome is Outcome.FAIL:
        if record.finish_reason:
            return f"ended by {record.finish_reason} and with an error: {record.error}"
        silent = record.error in ("", NO_ERROR_BODY)
        return f"was refused with HTTP {record.http_status} and without a word" if silent else ""
    if record.outcome is not Outcome.OK:
        return f"said that it ended by {record.finish_reason}, and its end never came"
    if record.http_status not in (0, 200):
        return f"is whole and has HTTP status {record.http_status}"
    if record.error:
        return f"is whole and holds an error: {record.error}"
    by_index = {chunk.index: chunk.token for chunk in record.chunks}
    tokens = tuple(by_index[index] for index in sorted(by_index))
    if record.usage_tokens >= 0 and record.usage_tokens != len(tokens):
        return f"says that it has {record.usage_tokens} tokens, {len(tokens)} came"
    if golden is None or not is_prefix(tokens, golden.tokens):
        return ""
    if len(tokens) < len(golden.tokens):
        missing = len(golden.tokens) - len(tokens)
        return f"says that it ended by {record.finish_reason}, {missing} tokens are missing"
    if record.finish_reason != golden.finish_reason:
        return f"says that it ended by {record.finish_reason}, it ended by {golden.finish_reason}"
    return ""
