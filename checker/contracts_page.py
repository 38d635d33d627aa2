"""The contract page: every check that is declared, as Markdown (`docs/contracts.md`)."""

import sys
from collections.abc import Iterable
from pathlib import Path

from tocsin.checker.contract import Check, registry
from tocsin.core.markdown import anchor, cell, code, paragraphs
from tocsin.core.terms import Layer, Phase, Profile

HEAD = """# Contracts

What each operator promises, and which check holds it to that. This page is written by
`make docs` from the declarations in `checker/checks/`; edit those, not this page.

A check returns a *ratio*: what it found, divided by what it allows. A ratio of 1.0 is the limit,
and anything that is not ≤ 1 is an alarm, NaN included. Profile `guard` runs the checks marked
*guard*, profile `full` runs all of them, profile `off` runs none.
"""


def contracts_page(checks: Iterable[Check] | None = None) -> str:
    """The page as text.

    Args:
        checks: the checks to describe; None: all that are declared.
    """
    units = list(registry().values()) if checks is None else list(checks)
    parts = [HEAD]
    for layer in Layer:
        of_layer = [unit for unit in units if unit.layer is layer]
        if of_layer:
            parts.append(_overview(layer, of_layer))
            parts += [_section(unit) for unit in of_layer]
    return "\n".join(parts)


def main(words: list[str]) -> None:
    """Write the page to the file named by the first word, or print it."""
    if words:
        Path(words[0]).write_text(contracts_page(), encoding="utf-8")
    else:
        sys.stdout.write(contracts_page())


def _overview(layer: Layer, units: list[Check]) -> str:
    rows = [
        f"| [{unit.id}](#{anchor(unit.id)}) | {code(unit.operators)} | {_profile(unit)} "
        f"| {unit.priority} | {cell(unit.summary)} |"
        for unit in units
    ]
    return "\n".join(
        [
            f"## Layer {layer}\n",
            "| check | operators | profile | alert | what the ratio measures |",
            "|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


def _section(unit: Check) -> str:
    lines = [f"### {unit.id}\n", f"{unit.summary}\n"]
    explained = paragraphs(unit.ratio)
    if explained:
        lines.append(f"{explained}\n")
    lines += [
        f"- **Looks at**: {code(unit.operators)}, {_phase(unit)}",
        f"- **If it is violated**: {unit.impact}",
        f"- **What to do**: {unit.remedy}",
    ]
    if unit.thresholds:
        limits = ", ".join(f"`{name}` = {value:g}" for name, value in unit.thresholds.items())
        lines.append(f"- **Limits**: {limits}")
    if unit.catches:
        caught = ", ".join(f"[{fault}](faults.md#{anchor(fault)})" for fault in unit.catches)
        lines.append(f"- **Must catch**: {caught}")
    lines += [f"- **Source**: {unit.source}", ""]
    return "\n".join(lines)


def _profile(unit: Check) -> str:
    if unit.profile is Profile.GUARD:
        return "guard"
    if unit.guard_at:
        return f"full; guard at {code(unit.guard_at)}"
    return "full"


def _phase(unit: Check) -> str:
    if unit.phase is Phase.BEFORE:
        return "before it runs; an alarm vetoes the launch"
    return "after it has run"


if __name__ == "__main__":
    main(sys.argv[1:])
