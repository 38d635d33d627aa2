"""The fault and property page: all that is declared, as Markdown (`docs/faults.md`)."""

import sys
from collections.abc import Iterable
from pathlib import Path

from tocsin.chaos.catalogue import catalogue_markdown
from tocsin.chaos.contract import Fault, Property, faults, properties
from tocsin.core.faulting import Scope
from tocsin.core.markdown import anchor, cell, code, first_line, paragraphs

HEAD = """# Faults and properties

What can be broken on purpose, and what must hold all the same. This page is written by
`make docs` from the declarations in `chaos/faults/` and `chaos/properties/`; edit those, not
this page.

A *fault* changes one place and returns the readings before and after: that is the proof that it
fired. It lives under a lease in its target and heals by itself when nobody renews the lease. At
least one of the detectors that it names must see it. A *property* judges a whole recorded history;
each must flag the sins that the oracle self-test commits against it.
"""

CATALOGUE = """## Catalogue

The ways in which serving goes wrong, and which of our faults make them happen. A row that no fault
makes says why: of such a row nothing is claimed.
"""

WHERE = {
    Scope.WORKER: "in the serving process, at a seam",
    Scope.PROCESS: "on the process, by a chaos actor of its node",
    Scope.POD: "on the pod of a replica, by the run itself through the Kubernetes API",
    Scope.NODE: "on the Ray node of a replica, by a chaos actor of the head",
    Scope.CLUSTER: "on Ray itself, in a cluster of the run's own",
    Scope.NETWORK: "on the road between the run's own load and the service",
    Scope.SIDE: "beside the replicas of the run's own machine, on what they write and tell",
    Scope.CLIENT: "by clients, in a request that no honest one would send, or in how they ask and "
    "leave",
}


def faults_page(
    declared: Iterable[Fault] | None = None, judged: Iterable[Property] | None = None
) -> str:
    """The page as text.

    Args:
        declared: the faults to describe; None: all that are declared.
        judged: the properties to describe; None: all that are declared.
    """
    units = list(faults().values()) if declared is None else list(declared)
    rules = list(properties().values()) if judged is None else list(judged)
    rows = [
        f"| [{unit.id}](#{anchor(unit.id)}) | {unit.scope} | {_seam(unit)} "
        f"| {_detectors(unit)} | {unit.priority} |"
        for unit in units
    ]
    verdicts = [
        f"| [{rule.id}](#{anchor(rule.id)}) | {cell(rule.summary)} | {code(rule.sins)} |"
        for rule in rules
    ]
    return "\n".join(
        [
            HEAD,
            "## Faults\n",
            "| fault | scope | seam | seen by one of | alert |",
            "|---|---|---|---|---|",
            *rows,
            "",
            *[_fault_section(unit) for unit in units],
            CATALOGUE,
            catalogue_markdown([unit.id for unit in units]),
            "## Properties\n",
            "| property | what holds | sins that it must flag |",
            "|---|---|---|",
            *verdicts,
            "",
            *[_property_section(rule) for rule in rules],
        ]
    )


def main(words: list[str]) -> None:
    """Write the page to the file named by the first word, or print it."""
    if words:
        Path(words[0]).write_text(faults_page(), encoding="utf-8")
    else:
        sys.stdout.write(faults_page())


def _fault_section(unit: Fault) -> str:
    lines = [f"### {unit.id}\n", f"{unit.summary}\n"]
    explained = paragraphs(unit.inject)
    if explained:
        lines.append(f"{explained}\n")
    seam = f": {_seam(unit)}" if unit.operators else ""
    lines.append(f"- **Where**: {WHERE[unit.scope]}{seam}")
    lines.append(f"- **Seen by one of**: {_detectors(unit)}")
    if unit.params:
        settings = ", ".join(f"`{name}` = {value!r}" for name, value in unit.params.items())
        lines.append(f"- **Settings**: {settings}")
    healed = first_line(unit.heal_with) or "lasts for its call only: there is nothing to heal"
    lines.append(f"- **Healing**: {healed}")
    if unit.verify_heal_with is not None:
        lines.append(f"- **Healing is shown by**: {first_line(unit.verify_heal_with)}")
    lines += [f"- **Source**: {unit.source}", ""]
    return "\n".join(lines)


_CONDITIONAL = (
    "- **Conditional**: where there is nothing for it, it is shown as vacuous and counts only in "
    "an experiment that names it"
)


def _property_section(rule: Property) -> str:
    lines = [f"### {rule.id}\n", f"{rule.summary}\n"]
    explained = paragraphs(rule.judge)
    if explained:
        lines.append(f"{explained}\n")
    lines += [
        f"- **Must flag**: {code(rule.sins)}",
        f"- **When it is violated**: {rule.advice}",
        *([_CONDITIONAL] if rule.conditional else []),
        "",
    ]
    return "\n".join(lines)


def _seam(unit: Fault) -> str:
    if not unit.operators:
        return "no seam"
    return f"{code(unit.operators)}, {unit.phase.name.lower()} it runs"


def _detectors(unit: Fault) -> str:
    """Check ids link to the contract page; detectors of the service stand as they are."""
    return ", ".join(
        f"`{name}`" if name.startswith("service.") else f"[{name}](contracts.md#{anchor(name)})"
        for name in unit.expect
    )


if __name__ == "__main__":
    main(sys.argv[1:])
