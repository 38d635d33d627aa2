"""What arrived was at every moment the beginning of one answer."""

from tocsin.chaos.case import Case, PropertyVerdict, Violation, conclude
from tocsin.chaos.contract import prop
from tocsin.chaos.triage import first_difference
from tocsin.core.history import Outcome, RequestRecord
from tocsin.core.system import GoldenAnswer


@prop(
    "stream.prefix",
    sins=(
        "duplicate_index",
        "restart_stream",
        "drop_middle_token",
        "drop_last_token",
        "wrong_token_in_cancelled",
        "token_after_end",
        "token_after_cancel",
    ),
    advice="look at how the gateway resumes a stream: tokens must go on at the next index",
)
def judge(case: Case) -> PropertyVerdict:
    """Indices run 0, 1, 2… without gap or repeat; text, count and golden beginning agree.

    A broken-off answer (cancelled, refused, connection lost) must be a beginning of the golden
    one; completed answers are compared by `golden.tokens`.
    """
    exact = bool(case.certificate.get("bit_exact"))
    tau = float(case.certificate.get("tau", 0.0))
    checked = 0
    violations: list[Violation] = []
    for record in case.honest:
        if not record.chunks:
            continue
        checked += 1
        golden = case.golden.get(record.prompt_id)
        reason = _structure(record) or (
            _golden(record, golden, -1.0 if exact and not record.degraded else tau)
            if golden is not None and record.outcome is not Outcome.OK
            else ""
        )
        if reason:
            violations.append(
                Violation(
                    f"{record.request_id}: {reason}",
                    request_id=record.request_id,
                    evidence={"indices": [chunk.index for chunk in record.chunks]},
                )
            )
    return conclude(judge.id, checked, violations, nothing="no request received a token")


def _structure(record: RequestRecord) -> str:
    """What is wrong with the stream itself; empty when nothing is."""
    for place, chunk in enumerate(record.chunks):
        if chunk.index != place:
            return f"token {place} to arrive has index {chunk.index}, expected {place}"
    times = [chunk.t_ns for chunk in record.chunks]
    if record.t_end_ns and times[-1] > record.t_end_ns:
        return "a token arrived after the end"
    if record.outcome is not Outcome.OK:
        return ""
    if record.usage_tokens >= 0 and record.usage_tokens != len(times):
        return f"usage says {record.usage_tokens} tokens, {len(times)} arrived"
    text = "".join(chunk.text for chunk in record.chunks)
    if record.stream and record.text and record.text != text:
        return "the parts that arrived do not add up to the text"
    return ""


def _golden(record: RequestRecord, golden: GoldenAnswer, tau: float) -> str:
    """Whether a broken-off answer began wrong; a flip at a margin up to tau is let pass."""
    tokens = record.tokens
    first = first_difference(tokens, golden.tokens[: len(tokens)])
    if first < 0:
        return ""
    margin = golden.margins[first] if first < len(golden.margins) else None
    if margin is not None and margin <= tau:
        return ""
    return f"{record.outcome} after a token at index {first} that is not golden"
