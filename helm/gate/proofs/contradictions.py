"""What the schema takes and no guard may: one contradiction in every section of the same shape."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tocsin.core.errors import SpecError
from tocsin.helm.gate.proofs.leaves import Leaf, leaves, placed
from tocsin.helm.gate.proofs.many import texts
from tocsin.helm.gate.render import Case, merged
from tocsin.helm.gate.rule import Finding

# Keys by which a section is known → what contradicts itself within one.
SHAPES: tuple[tuple[frozenset[str], tuple[Mapping[str, Any], ...]], ...] = (
    (
        frozenset({"nodeAffinity", "tolerations"}),
        (
            {"nodeAffinity": {"required": [{"key": "a"}]}},
            {"nodeAffinity": {"preferred": [{"key": "a", "operator": "Exists", "values": ["b"]}]}},
            {"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]},
        ),
    ),
    (frozenset({"cpu", "cpuLimit"}), ({"cpu": "4", "cpuLimit": "1"},)),
)
# Below these a section is asked once it is switched on: what waits for its day refuses nobody.
_RELAY = {"enabled": True, "configSecret": "relay", "tokenSecret": {"name": "relay"}}
_SWITCHES: Mapping[str, Mapping[str, Any]] = {
    "chaos.": {"chaos": {"enabled": True}},
    "monitoring.relay.": {"monitoring": {"relay": _RELAY}},
    "ray.autoscaling.": {"ray": {"autoscaling": {"enabled": True}}},
}
# What every group is given is asked of each group, and named by it.
_NAMES = {"worker": "workerGroups.checked"}


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Values of one section that do not fit each other.

    Attributes:
        section: its path as a person writes it.
        said: what stands in it.
        values: the whole value set.
    """

    section: str
    said: Mapping[str, Any]
    values: Mapping[str, Any]

    def is_named(self, words: str) -> bool:
        """Whether a refusal says where it is."""
        first, dot, rest = self.section.partition(".")
        return f"{_NAMES.get(first, first)}{dot}{rest}." in words


def contradictions(declared: Iterable[Leaf]) -> list[Contradiction]:
    """All of them, for every section that a schema declares."""
    found = []
    for leaf in declared:
        if not leaf.is_section:
            continue
        for keys, wrong in SHAPES:
            if keys <= set(leaf.schema["properties"]):
                found += [Contradiction(leaf.name, said, _around(leaf, said)) for said in wrong]
    return found


def accepted(chart: Path) -> tuple[list[Finding], int]:
    """Findings for each that is rendered, or refused without its place; and how many there are."""
    asked = contradictions(leaves(chart))
    findings = []
    answers = texts([Case(one.values) for one in asked], chart=chart) if asked else []
    for one, answer in zip(asked, answers, strict=True):
        if not (isinstance(answer, SpecError) and one.is_named(str(answer))):
            found = f"{answer}" if isinstance(answer, SpecError) else "accepted silently"
            where, expected = f"values {one.section}", "a guard's refusal that names the place"
            findings.append(
                Finding("values.contradiction", where, f"{dict(one.said)}: {found}", expected)
            )
    return findings, len(asked)


def _around(leaf: Leaf, said: Mapping[str, Any]) -> dict[str, Any]:
    values = placed(leaf.around, leaf.path, said)
    for start, switch in _SWITCHES.items():
        if leaf.name.startswith(start):
            values = merged(switch, values)
    return values
