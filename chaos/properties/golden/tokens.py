"""Completed answers are the golden ones."""

from collections import Counter
from dataclasses import replace

from tocsin.chaos.case import Case, PropertyVerdict, Violation, conclude
from tocsin.chaos.contract import prop
from tocsin.chaos.triage import Category, ForeignIndex, triage
from tocsin.core.history import Outcome


@prop(
    "golden.tokens",
    sins=(
        "swap_token",
        "drop_middle_token",
        "drop_last_token",
        "wrong_finish",
        "replace_answer",
        "truncated_as_success",
    ),
    advice="compare the token diff with the alarms of that replica; "
    "a wrong answer without a label is silent corruption: hold the release",
)
def judge(case: Case) -> PropertyVerdict:
    """Every completed honest answer equals its golden decode, token by token.

    A labelled answer came from another kernel, and an engine without the invariance certificate
    may turn near ties too: there a flip at a margin up to tau is let pass, and counted in a note.
    """
    foreign = ForeignIndex(case.golden)
    exact = bool(case.certificate.get("bit_exact"))
    tau = float(case.certificate.get("tau", 0.0))
    checked = ties = 0
    classes: Counter[str] = Counter()
    missing: set[str] = set()
    violations: list[Violation] = []
    for record in case.honest:
        if record.outcome is not Outcome.OK:
            continue
        golden = case.golden.get(record.prompt_id)
        if golden is None:
            missing.add(record.prompt_id)
            continue
        checked += 1
        # By index, so that a token delivered twice is the affair of the stream's properties.
        by_index = {chunk.index: chunk.token for chunk in record.chunks}
        tokens = tuple(by_index[index] for index in sorted(by_index))
        found = triage(tokens, record.finish_reason, golden, foreign, tau)
        if found.category is Category.EQUAL:
            continue
        classes[str(found.category)] += 1
        if found.category is Category.TIE_FLIP and (record.degraded or not exact):
            ties += 1
            continue
        silent = not record.degraded
        violations.append(
            Violation(
                f"{record.request_id}: {'silently ' if silent else ''}wrong from index "
                f"{found.first_index} on ({found.category}): {found.detail}",
                request_id=record.request_id,
                evidence={
                    "silent": silent,
                    "category": str(found.category),
                    "first_index": found.first_index,
                    "margin": found.margin,
                    "prompt_id": record.prompt_id,
                    "attempts": list(record.attempts),
                },
            )
        )
    verdict = conclude(
        judge.id,
        checked,
        violations,
        unknown=f"no golden answer for prompts {sorted(missing)}" if missing else "",
        nothing="no honest request was completed",
        notes=(f"{ties} near ties turned within tau {tau:.3g}",) if ties else (),
    )
    return replace(verdict, classes=dict(classes))
