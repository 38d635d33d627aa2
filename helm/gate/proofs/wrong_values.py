"""Every value misspelt, out of range, of a wrong type, null: helm refuses each and names it."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tocsin.core.errors import SpecError
from tocsin.helm.gate.proofs.contradictions import accepted as contradicted
from tocsin.helm.gate.proofs.leaves import Leaf, Place, leaves, placed, sample
from tocsin.helm.gate.proofs.proof import Proof
from tocsin.helm.gate.proofs.schema_answers import schema_answers
from tocsin.helm.gate.render import render
from tocsin.helm.gate.rule import Finding

_ALONE = 12
"""Of the wrong values, how many are also given to a helm process of their own."""
_ILL_SHAPED = ("", " ", "two words", "Ünïcode", "{{ x }}", "$(id)", "-", "UPPER_lower!", "x\ny")
# Path of a value → what none of this name may be, whatever its own schema says of it.
_NEVER: tuple[tuple[re.Pattern[str], tuple[Any, ...]], ...] = (
    (re.compile(r"(?i)(url|endpoint)$"), ("http://a:99999", "http://u:p@a", "not a url")),
    (re.compile(r"cidrs$"), (["10.0.0.0/99"], ["300.0.0.0/8"], ["1::2::3/64"])),
    (re.compile(r"timeZone$"), ("Local", "Mars/Base")),
    (re.compile(r"(token|Secret|Ref)\.key$|configKey$"), ("..", "a/../b")),
    (re.compile(r"pullSecrets$"), ([""],)),
    (re.compile(r"[aA]ddress$|smarthost$"), ("a:99999", "a:0")),
    (re.compile(r"namespaceLabel$"), ("a" * 64 + "=b", "a=" + "b" * 64)),
)


@dataclass(frozen=True, slots=True)
class Wrong:
    """One wrong value.

    Attributes:
        kind: misspelt, enum, range, pattern, form, type or null.
        leaf: the place that is meant.
        path: where the value is written: elsewhere only when the key is misspelt.
    """

    kind: str
    leaf: Leaf
    path: Place
    value: Any

    @property
    def alone(self) -> dict[str, Any]:
        """A value set with this one mistake."""
        return placed(self.leaf.around, self.path, self.value)

    def is_named(self, objections: Iterable[str]) -> bool:
        """Whether an objection points to this very place, or names the key that is wrong there."""
        pointer = "/" + "/".join(map(str, self.path))
        parent = pointer.rpartition("/")[0]
        for line in objections:
            at, _, words = line.removeprefix("at '").partition("':")
            if at == pointer or at.startswith(pointer + "/"):
                return True
            if at == parent and f"'{self.path[-1]}'" in words:
                return True
        return False


def wrong_values(chart: Path) -> Proof:
    """Have helm judge every wrong value that the schema suggests, and what contradicts itself.

    Mistakes in different places travel in one value set, as helm objects to each by its place; a
    dozen are given to it one by one besides.
    """
    wrong = list(wrongs(leaves(chart)))
    crates = packed(wrong)
    answers = schema_answers(chart, {str(number): one.values for number, one in enumerate(crates)})
    accepted = [
        one
        for number, crate in enumerate(crates)
        for one in crate.wrong
        if not one.is_named(answers[str(number)])
    ]
    findings = [_accepted(one, "accepted silently") for one in accepted]
    alone = wrong[:: max(1, len(wrong) // _ALONE)]
    for one in alone:
        try:
            render(one.alone, chart=chart)
        except SpecError:
            continue
        findings.append(_accepted(one, "accepted when it comes alone"))
    unseen, contradictions = contradicted(chart)
    findings += unseen
    kinds = {kind: sum(one.kind == kind for one in wrong) for kind in _KINDS}
    return Proof(
        "wrong_values",
        f"{len(accepted) + len(unseen)} of {len(wrong) + contradictions}",
        {
            "wrong": len(wrong) + contradictions,
            "accepted": len(accepted) + len(unseen),
            "asked_alone": len(alone),
            **kinds,
            "contradiction": contradictions,
        },
        tuple(findings),
    )


@dataclass(slots=True)
class Crate:
    """Wrong values in one value set, none within another."""

    values: dict[str, Any] = field(default_factory=dict)
    wrong: list[Wrong] = field(default_factory=list)
    taken: set[Place] = field(default_factory=set)
    above: set[Place] = field(default_factory=set)

    def takes(self, one: Wrong) -> bool:
        """Put it in, unless it would hide another or be hidden by it."""
        prefixes = {one.path[:length] for length in range(1, len(one.path) + 1)}
        if one.path in self.above or prefixes & self.taken:
            return False
        self.values = placed(_with(self.values, one.leaf.around), one.path, one.value)
        self.wrong.append(one)
        self.taken.add(one.path)
        self.above |= prefixes
        return True


def packed(wrong: Iterable[Wrong]) -> list[Crate]:
    """Every wrong value in the first value set that has room for it."""
    crates: list[Crate] = []
    for one in wrong:
        if not any(crate.takes(one) for crate in crates):
            crates.append(Crate())
            crates[-1].takes(one)
    return crates


def _with(values: Mapping[str, Any], around: Mapping[str, Any]) -> dict[str, Any]:
    """What stands there already, and what a place needs besides."""
    result = dict(values)
    for key, value in around.items():
        if isinstance(value, Mapping) and isinstance(result.get(key, {}), Mapping):
            result[key] = _with(result.get(key, {}), value)
        else:
            result.setdefault(key, value)
    return result


def wrongs(declared: list[Leaf]) -> Iterator[Wrong]:
    """The wrong values of all places, in the schema's order."""
    for leaf in declared:
        yield from _misspelt(leaf)
        if leaf.required or leaf.is_said:
            yield Wrong("null", leaf, leaf.path, None)
        yield from _of_another_type(leaf)
        yield from _out_of_shape(leaf)
        yield from _of_no_use(leaf)
        yield from _in_a_map(leaf)


def misspelling(key: str) -> str:
    """The key with two letters swapped, or one doubled where a swap changes nothing."""
    for at in range(len(key) // 2, len(key) - 1):
        if key[at] != key[at + 1]:
            return key[:at] + key[at + 1] + key[at] + key[at + 2 :]
    return key + key[-1]


_KINDS = ("misspelt", "null", "type", "enum", "range", "pattern", "form")


def _misspelt(leaf: Leaf) -> Iterator[Wrong]:
    key = str(leaf.path[-1])
    value = sample(leaf.schema, leaf.root)
    for slip in {misspelling(key), key[0].swapcase() + key[1:]}:
        yield Wrong("misspelt", leaf, (*leaf.path[:-1], slip), value)


def _of_another_type(leaf: Leaf) -> Iterator[Wrong]:
    for value in ("word", 7, True, [], {}, ["word"], {"word": 1}):
        if not leaf.accepts(value) and not _is_its_type(leaf, value):
            yield Wrong("type", leaf, leaf.path, value)


def _is_its_type(leaf: Leaf, value: Any) -> bool:
    """Whether only the shape is wrong: that is asked by the shape's own cases."""
    names = {str: "string", bool: "boolean", int: "integer", list: "array", dict: "object"}
    kinds = leaf.schema.get("type", ())
    kinds = {kinds} if isinstance(kinds, str) else set(kinds)
    # helm merges a mapping into the default's mapping, so {} is no value at all there
    if value == {} and isinstance(leaf.default, Mapping):
        return True
    return names[type(value)] in kinds or (type(value) is int and "number" in kinds)


def _out_of_shape(leaf: Leaf) -> Iterator[Wrong]:
    schema = leaf.schema
    for word in schema.get("enum", ()):
        if isinstance(word, str):
            for slip in (word + "x", word.swapcase(), f" {word}"):
                if not leaf.accepts(slip):
                    yield Wrong("enum", leaf, leaf.path, slip)
    for value in _beyond(schema):
        if not leaf.accepts(value):
            yield Wrong("range", leaf, leaf.path, value)
    if schema.get("type") == "string" and "enum" not in schema:
        for word in (*_ILL_SHAPED, "x" * (schema.get("maxLength", 0) + 1)):
            if not leaf.accepts(word):
                yield Wrong("pattern", leaf, leaf.path, word)


def _of_no_use(leaf: Leaf) -> Iterator[Wrong]:
    """What a value of this name can never be: the schema's own word is not taken for it."""
    for name, values in _NEVER:
        if not leaf.is_section and name.search(leaf.name):
            yield from (Wrong("form", leaf, leaf.path, value) for value in values)


def _beyond(schema: Mapping[str, Any]) -> Iterator[float]:
    whole = schema.get("type") == "integer"
    if "minimum" in schema:
        yield schema["minimum"] - 1
    if "maximum" in schema:
        yield schema["maximum"] + 1
    yield from (schema[end] for end in ("exclusiveMinimum", "exclusiveMaximum") if end in schema)
    if whole:
        yield schema.get("minimum", 0) + 0.5


def _in_a_map(leaf: Leaf) -> Iterator[Wrong]:
    """A map that people fill: a key and a value that cannot stand there."""
    schema = leaf.schema
    if leaf.is_section or schema.get("type") != "object":
        return
    slips: tuple[Any, ...] = ({"not a key!": "x"}, {"word": [1]}, {"word": {"word": {}}})
    for slip in slips:
        if not leaf.accepts(slip):
            yield Wrong("type", leaf, leaf.path, slip)


def _accepted(one: Wrong, how: str) -> Finding:
    name = Leaf(one.path, {}, {}).name
    return Finding(
        f"values.{one.kind}",
        f"values {name}",
        f"{one.value!r:.80} {how}",
        f"helm's refusal of it by values.schema.json ({one.leaf.name} is meant)",
    )
