"""An answer does not depend on who else is served."""

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence

from tocsin.chaos.case import Case, PropertyVerdict, Violation, conclude
from tocsin.chaos.contract import prop
from tocsin.chaos.triage import first_difference
from tocsin.core.history import Outcome, RequestRecord
from tocsin.core.system import GoldenAnswer

Tokens = tuple[int, ...]


@prop(
    "isolation.metamorphic",
    sins=(
        "swap_token",
        "drop_middle_token",
        "drop_last_token",
        "replace_answer",
        "truncated_as_success",
    ),
    advice="send the two requests again, alone and in the same company: if they still differ, "
    "something of a neighbour is read",
)
def judge(case: Case) -> PropertyVerdict:
    """All completed answers to one prompt are the same, alone or in any company.

    Compared with each other and with the quiet engine's answer, which was given alone; most of
    them say what is right, so this needs no trust in the oracle. Where there is no certificate of
    bits, a difference at a near tie is let pass; a labelled answer came from another kernel.
    """
    exact = bool(case.certificate.get("bit_exact"))
    tau = float(case.certificate.get("tau", 0.0))
    groups: dict[str, list[RequestRecord]] = defaultdict(list)
    for record in (*case.warmup, *case.honest):
        if record.outcome is Outcome.OK and not record.degraded and record.prompt_id:
            groups[record.prompt_id].append(record)
    checked = 0
    violations: list[Violation] = []
    for prompt_id, group in groups.items():
        golden = case.golden.get(prompt_id)
        if len(group) + (golden is not None) < 2:
            continue
        answers = [_tokens(record) for record in group]
        usual = _usual(answers, golden)
        for record, tokens in zip(group, answers, strict=True):
            checked += 1
            first = first_difference(tokens, usual)
            if first < 0 or (not exact and _near_tie(golden, first, tau)):
                continue
            violations.append(
                Violation(
                    f"{record.request_id}: answers prompt {prompt_id} otherwise from index "
                    f"{first} on than {answers.count(usual)} other requests",
                    request_id=record.request_id,
                    evidence={
                        "prompt_id": prompt_id,
                        "first_index": first,
                        "attempts": list(record.attempts),
                    },
                )
            )
    return conclude(
        judge.id,
        checked,
        violations,
        nothing="no prompt was answered twice",
        notes=_company([record for group in groups.values() for record in group], case),
    )


def _tokens(record: RequestRecord) -> Tokens:
    """By index, so that a token delivered twice is the affair of the stream's properties."""
    by_index = {chunk.index: chunk.token for chunk in record.chunks}
    return tuple(by_index[index] for index in sorted(by_index))


def _usual(answers: Sequence[Tokens], golden: GoldenAnswer | None) -> Tokens:
    """What most say; of equally many, the answer that was given alone."""
    alone = golden.tokens if golden is not None else ()
    counts = Counter([*answers, alone] if golden is not None else answers)
    return max(counts, key=lambda tokens: (counts[tokens], tokens == alone))


def _near_tie(golden: GoldenAnswer | None, index: int, tau: float) -> bool:
    return golden is not None and index < len(golden.margins) and golden.margins[index] <= tau


def _company(compared: Sequence[RequestRecord], case: Case) -> tuple[str, ...]:
    """In whose company the compared answers were given."""
    begins = sorted(record.t_invoke_ns for record in case.honest)
    ends = sorted(record.t_end_ns for record in case.honest if record.t_end_ns)
    others = [
        bisect_left(begins, record.t_end_ns) - bisect_right(ends, record.t_invoke_ns) - 1
        for record in compared
        if record.t_end_ns
    ]
    if not others:
        return ()
    return (f"answers in the company of {max(0, min(others))} to {max(others)} other requests",)
