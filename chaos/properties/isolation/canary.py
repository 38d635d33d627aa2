"""No answer holds what belongs to another request."""

from tocsin.chaos.case import Case, PropertyVerdict, Violation, conclude
from tocsin.chaos.contract import prop
from tocsin.chaos.triage import ForeignIndex, first_difference


@prop(
    "isolation.canary",
    sins=("move_canary", "replace_answer"),
    advice="treat it as a leak between users: find the page that both requests held",
)
def judge(case: Case) -> PropertyVerdict:
    """No answer holds another prompt's canary word, nor a run of tokens golden only there.

    A small model seldom repeats its canary, so this alone is weak evidence: golden equality and
    page owners carry isolation, too. What the golden answer holds itself is no leak.
    """
    words = {p.id: p.canary.casefold() for p in case.prompts.values() if p.canary}
    foreign = ForeignIndex(case.golden)
    checked = 0
    violations: list[Violation] = []
    for record in case.honest:
        if not record.chunks and not record.text:
            continue
        checked += 1
        golden = case.golden.get(record.prompt_id)
        text = (record.text or "".join(chunk.text for chunk in record.chunks)).casefold()
        allowed = golden.text.casefold() if golden else ""
        owner = next(
            (
                prompt_id
                for prompt_id, word in words.items()
                if prompt_id != record.prompt_id and word in text and word not in allowed
            ),
            "",
        )
        what = f"canary {words[owner]!r}" if owner else "text"
        if not owner and golden is not None and first_difference(record.tokens, golden.tokens) >= 0:
            owner = foreign.owner(record.tokens, record.prompt_id)
        if owner:
            violations.append(
                Violation(
                    f"{record.request_id}: holds {what} of prompt {owner}",
                    request_id=record.request_id,
                    evidence={"owner": owner, "attempts": list(record.attempts)},
                )
            )
    return conclude(judge.id, checked, violations, nothing="no honest request received any text")
