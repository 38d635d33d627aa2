"""Every documented value changes at least one rendered byte: none is dead."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tocsin.helm.gate.proofs.leaves import Leaf, leaves, placed
from tocsin.helm.gate.proofs.many import texts
from tocsin.helm.gate.proofs.neighbours import neighbours
from tocsin.helm.gate.proofs.proof import Proof
from tocsin.helm.gate.render import Case, merged
from tocsin.helm.gate.rule import Finding

RULE = "values.dead"
_TRIES = 8


class Stage(NamedTuple):
    """One search for an effect, wider than the one before it."""

    places: int
    tries: int
    are_guards_silent: bool = False


STAGES = (
    Stage(places=1, tries=1),
    Stage(places=2, tries=4),
    Stage(places=16, tries=1),
    # A guard may demand that two values change together: alone neither ever shows an effect.
    Stage(places=16, tries=2, are_guards_silent=True),
    Stage(places=999, tries=1),
    Stage(places=999, tries=_TRIES),
)


def live_values(chart: Path, surroundings: Mapping[str, Case]) -> Proof:
    """Change each value alone and look whether anything that is rendered changes.

    A change that is refused shows nothing: a value is alive only where two renders that both
    succeed differ in nothing but this value. What can only change together with another value is
    changed alone with silent guards: a value that guards read and nothing else stays dead.

    Args:
        surroundings: name → values in which a value may have an effect, the commonest first; what
            is off by default has none without its switch.
    """
    declared = [leaf for leaf in leaves(chart) if not leaf.is_section]
    garden = Garden(chart, surroundings)
    dead = declared
    used: set[str] = set()
    paired = 0
    for stage in STAGES:
        if not dead:
            break
        before = len(dead)
        dead, seen = garden.without_effect(dead, stage)
        used |= seen
        paired += before - len(dead) if stage.are_guards_silent else 0
    findings = tuple(
        Finding(RULE, f"values {leaf.name}", "no rendered byte that it changes", _expected(leaf))
        for leaf in dead
    )
    alive = len(declared) - len(dead)
    return Proof(
        "live_values",
        f"{alive} of {len(declared)}",
        {
            "values": len(declared),
            "alive": alive,
            "alive_only_with_others": paired,
            "surroundings": len(used),
            "renders": garden.renders,
        },
        findings,
    )


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a value is tried.

    Attributes:
        key: name of the surroundings, and of the value whose needs were laid over them.
        seen: what a template sees there, the chart's own values included.
    """

    key: tuple[str, str]
    case: Case
    seen: Mapping[str, Any]

    def with_other(self, leaf: Leaf, value: Any) -> Case:
        """The same in all but one value."""
        section = str(leaf.path[0])
        there = {section: self.seen[section]} if section in self.seen else {}
        changed = placed(there, leaf.path, value)
        values = {**self.case.values, **changed}
        return Case(values, self.case.release, self.case.namespace)


class Garden:
    """A chart in many surroundings."""

    def __init__(self, chart: Path, surroundings: Mapping[str, Case]) -> None:
        """Read what the chart says by itself.

        Args:
            chart: its folder.
            surroundings: name → values in which a value may have an effect.
        """
        text = (chart / "values.yaml").read_text(encoding="utf-8")
        self._own: Mapping[str, Any] = yaml.safe_load(text) or {}
        self._chart = chart
        self._places = {
            name: _Place((name, ""), case, merged(self._own, case.values))
            for name, case in surroundings.items()
        }
        self._tried: set[tuple[str, tuple[str, str], str]] = set()
        self.renders = 0

    def without_effect(self, asked: Sequence[Leaf], stage: Stage) -> tuple[list[Leaf], set[str]]:
        """Those that change nothing in one stage, and the surroundings that showed the others."""
        before: dict[tuple[str, str], Case] = {}
        plan: list[tuple[Leaf, tuple[str, str], Case]] = []
        for leaf in asked:
            for place in self._chosen(leaf)[: stage.places]:
                before[place.key] = place.case
                for value in neighbours(leaf, leaf.within(place.seen), stage.tries):
                    if stage.are_guards_silent or self._is_new(leaf, place, value):
                        plan.append((leaf, place.key, place.with_other(leaf, value)))
        cases = [*before.values(), *(case for _, _, case in plan)]
        found = texts(cases, chart=self._chart, are_guards_silent=stage.are_guards_silent)
        self.renders += len(found)
        known = dict(zip(before, found, strict=False))
        alive: dict[str, str] = {}
        for (leaf, key, _), after in zip(plan, found[len(before) :], strict=True):
            if differ(known[key], after):
                alive.setdefault(leaf.name, key[0])
        return [leaf for leaf in asked if leaf.name not in alive], set(alive.values())

    def _chosen(self, leaf: Leaf) -> list[_Place]:
        """All places: first the two best whose values say this one, the others as given."""
        places = list(self._places.values())
        first = [place for place in places if leaf.is_within(place.case.values)][:2]
        rest = [place for place in places if not any(place is one for one in first)]
        return [self._with_needs(leaf, place) for place in (*first, *rest)]

    def _is_new(self, leaf: Leaf, place: _Place, value: Any) -> bool:
        trial = (leaf.name, place.key, repr(value))
        is_new = trial not in self._tried
        self._tried.add(trial)
        return is_new

    def _with_needs(self, leaf: Leaf, place: _Place) -> _Place:
        """The place with what the value needs to be there at all: an entry of a list."""
        if not leaf.around or leaf.is_within(place.case.values):
            return place
        case = over(place.case, leaf.around)
        return _Place((place.key[0], leaf.name), case, merged(self._own, case.values))


def differ(before: Any, after: Any) -> bool:
    """Whether objects differ; the notes are for people, and no effect."""
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return False
    return any(text != after[path] for path, text in before.items() if path.endswith(".yaml"))


def over(case: Case, values: Mapping[str, Any]) -> Case:
    """The case with more values laid over it."""
    return Case(merged(case.values, values), case.release, case.namespace)


def _expected(leaf: Leaf) -> str:
    if leaf.alternative() is None:
        return "another value that its schema takes; none is known"
    return "an effect, or no such value"
