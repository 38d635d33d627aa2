"""From a check and its ratio to a finding: one message form for every way to run a check."""

from tocsin.checker.contract import Check
from tocsin.core.terms import Operator
from tocsin.core.verdict import Finding


def make_finding(
    unit: Check,
    operator: Operator,
    ratio: float,
    rows: tuple[int, ...] = (),
    *,
    module: str = "",
    depth: int | None = None,
    detail: str = "",
) -> Finding:
    """What a check found, as *where: what was found, what was expected, what to do [check]*.

    Args:
        ratio: the worst one; NaN when the data are.
        rows: rows that alarmed; empty when the whole call did.
        detail: what is wrong in words, where the check can say more than a number.
    """
    where = module or str(operator)
    if depth is not None and not module:
        where = f"{operator} at depth {depth}"
    found = detail or _words(unit.summary, ratio, rows)
    return Finding(
        check=unit.id,
        operator=operator,
        layer=unit.layer,
        priority=unit.priority,
        ratio=ratio,
        module=module,
        rows=rows,
        message=f"{where}: {found}; {unit.remedy} [{unit.id}]",
        impact=unit.impact,
        depth=depth,
    )


def _words(summary: str, ratio: float, rows: tuple[int, ...]) -> str:
    """A ratio in words, with the sentence that says what the check measures."""
    sentence = summary[:1].lower() + summary[1:].rstrip(".")
    place = _place(rows)
    rule = sentence.removeprefix("infinity ")
    if rule == sentence or ratio != float("inf"):
        return f"the residual is {ratio:.4g} of its limit {place}, expected at most 1 ({sentence})"
    word, _, rest = rule.partition(" ")
    if word == "unless":
        return f"a rule is broken {place}, expected that {rest}"
    return f"found {'that ' * (word == 'where')}{rest}, {place}, expected nothing of the kind"


def _place(rows: tuple[int, ...]) -> str:
    if not rows:
        return "in the call as a whole"
    shown = ", ".join(map(str, rows[:8]))
    return f"in row {shown}" if len(rows) == 1 else f"in rows {shown}{', …' * (len(rows) > 8)}"
