"""The gate as a mutant meets it: the renders that a fault can change, judged by every rule."""

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tocsin.core.errors import SpecError, TocsinError
from tocsin.helm.gate import matrix
from tocsin.helm.gate.findings import findings
from tocsin.helm.gate.mutants.meaning import meaning
from tocsin.helm.gate.mutants.operators import Mutant
from tocsin.helm.gate.proofs.blast_radius import blast_findings, defaults
from tocsin.helm.gate.proofs.contexts import contexts
from tocsin.helm.gate.proofs.contracts import contract_findings
from tocsin.helm.gate.proofs.leaves import Leaf, leaves
from tocsin.helm.gate.proofs.live_values import Garden, Stage, differ
from tocsin.helm.gate.proofs.many import Texts, read
from tocsin.helm.gate.proofs.quoting import ambiguous
from tocsin.helm.gate.proofs.refusals import answers
from tocsin.helm.gate.proofs.refusals import cases as refused_cases
from tocsin.helm.gate.proofs.routes import routes
from tocsin.helm.gate.proofs.stability import bump
from tocsin.helm.gate.proofs.switches import switch_findings
from tocsin.helm.gate.proofs.template_reads import unknown_reads
from tocsin.helm.gate.render import Case, texts_many
from tocsin.helm.gate.rule import Finding
from tocsin.helm.monitoring.examples import EXAMPLES

EQUIVALENT = "equivalent"
SURVIVED = "survived"
_FIRST = 5
"""Value sets that are tried first; the others only when these show nothing."""
_MEANT = 12
"""Values that are looked at where a fault stands among many."""
_QUICK = Stage(places=2, tries=1)
_BUMPED = ("defaults", "topology", "everything")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a mutant.

    Attributes:
        by: the rule that saw it, or `equivalent`, or `survived`.
    """

    mutant: Mutant
    by: str

    @property
    def caught(self) -> bool:
        """Whether the gate saw it."""
        return self.by not in (EQUIVALENT, SURVIVED)


def same(before: Texts, after: Texts) -> bool:
    """Whether two renders are objects that mean the same, however they are written."""
    if not differ(before, after):
        return True
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return False
    here, there = read(before).objects, read(after).objects
    if [(one.source, one.faults) for one in here] != [(one.source, one.faults) for one in there]:
        return False
    return all(
        one.body == other.body or meaning(one.kind, one.body) == meaning(other.kind, other.body)
        for one, other in zip(here, there, strict=True)
    )


def surroundings() -> dict[str, Case]:
    """The value sets that together reach every line: examples of each part, pairs, defaults."""
    chosen = {"defaults": Case(), "topology": Case({"topology": "cluster"})}
    chosen |= {name: Case(values) for name, values in EXAMPLES.items()}
    chosen |= {name: case for name, case in matrix.cases().items() if name.startswith("pairs")}
    return chosen


@dataclass(slots=True)
class Gate:
    """A chart, what it renders to, and what is known of it; then mutants of it are judged."""

    chart: Path
    cases: Mapping[str, Case] = field(default_factory=surroundings)
    known: dict[str, Texts] = field(default_factory=dict)
    further: dict[str, Texts] = field(default_factory=dict)
    """The same for value sets of the matrix that are asked when none of `cases` differs."""
    own: dict[str, object] = field(default_factory=dict)
    refused: frozenset[str] = frozenset()
    listed: list[Leaf] = field(default_factory=list)
    alive: dict[str, bool] = field(default_factory=dict)
    """Value → whether it shows an effect in the few surroundings that are asked here."""

    def learn(self) -> None:
        """Render the chart as it is.

        Raises:
            SpecError: helm refuses one of the value sets.
        """
        base = self.cases["everything"].values
        # Where a quote is left out, only words that YAML takes for something else show it.
        self.cases = {**self.cases, "words": ambiguous(self.chart, base)[0]}
        rendered = texts_many(list(self.cases.values()), chart=self.chart)
        self.known = dict(zip(self.cases, rendered, strict=True))
        self.own = defaults(self.chart)
        self.refused = self._refused(self.chart)
        self.listed = [leaf for leaf in leaves(self.chart) if not leaf.is_section]
        for name in self.cases:
            self._judged(name, self.known[name])  # so that what is as before is known already

    def judge(self, mutant: Mutant) -> Outcome:
        """Which rule sees this fault."""
        if mutant.path == "values.yaml":
            return Outcome(mutant, "stable.generated")  # values.yaml is held equal to its source
        with tempfile.TemporaryDirectory(prefix="tocsin-mutant-") as place:
            copy = Path(place) / "chart"
            shutil.copytree(self.chart, copy)
            (copy / mutant.path).write_text(mutant.text, encoding="utf-8")
            return Outcome(mutant, self._by(mutant, copy))

    def _by(self, mutant: Mutant, copy: Path) -> str:
        if strange := next(unknown_reads(copy), None):
            return strange.rule
        names = self._ordered(mutant.path)
        changed = False
        for part in (names[:_FIRST], names[_FIRST:]):
            seen, differs = self._seen(copy, part)
            if seen:
                return seen
            changed |= differs
        if found := self._unguarded(copy):
            return found
        if changed and (found := self._unstable(copy)):
            return found
        if found := self._dead(mutant, copy):
            return found
        found, differs = self._elsewhere(copy)
        if found:
            return found
        return SURVIVED if changed or differs else EQUIVALENT

    def _ordered(self, path: str) -> list[str]:
        """The value sets, those first in which the file says something, and says it differently."""
        if not path.endswith(".yaml"):
            return list(self.cases)
        seen: set[str] = set()
        first: list[str] = []
        rest: list[str] = []
        for name, files in self.known.items():
            text = files.get(path, "")
            (first if text.strip() and text not in seen else rest).append(name)
            seen.add(text)
        first.sort(key=lambda name: -len(self.known[name].get(path, "")))
        return first + rest

    def _seen(self, copy: Path, names: Sequence[str]) -> tuple[str, bool]:
        """The rule that sees a fault in these renders, and whether any text differs."""
        if not names:
            return "", False
        try:
            rendered = texts_many([self.cases[name] for name in names], chart=copy)
        except SpecError:
            return "render", True
        changed = False
        for name, files in zip(names, rendered, strict=True):
            before = self.known[name]
            if same(before, files):
                continue
            changed = True
            fresh = self._judged(name, files) - self._judged(name, before)
            if fresh:
                return min(fresh), True
        return "", changed

    def _judged(self, name: str, files: Texts, case: Case | None = None) -> frozenset[str]:
        """Rules that have something against a render; the place tells two findings apart."""
        case = case or self.cases[name]
        objects = read(files).objects
        found: list[Finding] = []
        found += findings(objects, release=case.release, namespace=case.namespace)
        found += blast_findings(objects, case, self.own)
        found += contract_findings(objects, case)
        found += switch_findings(objects, case, self.own)
        if any(one.kind == "AlertmanagerConfig" for one in objects) and name == "told":
            found += routes(objects, by_amtool=False).findings
        return frozenset(f"{one.rule} {one.where}: {one.found}" for one in found)

    def _refused(self, chart: Path) -> frozenset[str]:
        outcomes = answers(chart)
        return frozenset(
            name
            for name, (_, says) in refused_cases().items()
            if isinstance(outcomes[name], SpecError) and says in str(outcomes[name])
        )

    def _unguarded(self, copy: Path) -> str:
        lost = self.refused - self._refused(copy)
        return f"guards {min(lost)}" if lost else ""

    def _unstable(self, copy: Path) -> str:
        cases = {name: case for name, case in self.cases.items() if name in _BUMPED}
        found, _ = bump(copy, cases)
        return found[0].rule if found else ""

    def _dead(self, mutant: Mutant, copy: Path) -> str:
        """Whether a value that is read thereabouts has lost its effect."""
        meant = [leaf for leaf in self.listed if f".{leaf.path[-1]}" in mutant.near]
        # Where many values have a last word in common, the nearer ones share more words.
        meant.sort(key=lambda leaf: -sum(str(part) in mutant.near for part in leaf.path))
        meant = meant[:_MEANT]
        unknown = [leaf for leaf in meant if leaf.name not in self.alive]
        if unknown:
            self.alive |= dict.fromkeys((leaf.name for leaf in unknown), True)
            self.alive |= dict.fromkeys(_dead_of(unknown, self.chart), False)
        meant = [leaf for leaf in meant if self.alive[leaf.name]]
        try:
            lost = _dead_of(meant, copy) if meant else []
        except TocsinError:
            return ""
        return f"values.dead {min(lost)}" if lost else ""

    def _elsewhere(self, copy: Path) -> tuple[str, bool]:
        """The rule that sees a fault in the rest of the matrix, and whether anything differs."""
        others = {n: case for n, case in matrix.cases().items() if n not in self.cases}
        names = list(others)
        differs = False
        for start in range(0, len(names), matrix.CHUNK):
            part = names[start : start + matrix.CHUNK]
            unknown = [name for name in part if name not in self.further]
            cases = [others[name] for name in unknown]
            self.further |= dict(zip(unknown, texts_many(cases, chart=self.chart), strict=True))
            try:
                made = texts_many([others[name] for name in part], chart=copy)
            except SpecError:
                return "render", True
            for name, files in zip(part, made, strict=True):
                before = self.further[name]
                if same(before, files):
                    continue
                differs = True
                case = others[name]
                fresh = self._judged(name, files, case) - self._judged(name, before, case)
                if fresh:
                    return min(fresh), True
        return "", differs


def _dead_of(asked: Sequence[Leaf], chart: Path) -> list[str]:
    garden = Garden(chart, contexts(chart))
    return [leaf.name for leaf in garden.without_effect(asked, _QUICK)[0]]
