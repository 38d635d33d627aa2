"""Words that YAML takes for numbers or truth values stay words wherever they may be written."""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from tocsin.core.errors import SpecError
from tocsin.helm.gate.findings import findings
from tocsin.helm.gate.proofs.leaves import Leaf, leaves, placed
from tocsin.helm.gate.proofs.many import texts
from tocsin.helm.gate.proofs.proof import Proof
from tocsin.helm.gate.render import Case, merged, render_many

WORDS = ("123", "true", "1e3", "0x10", "null")
_RULES = ("builtin.schema", "custom.schema", "metadata.text")
RELEASE, NAMESPACE, NAME = "123", "456", "f"
# Most of a render's time: left out where each place is tried alone, not where all are together.
LONG = ("prometheusRule", "dashboards")


def quoting(chart: Path, base: Mapping[str, Any]) -> Proof:
    """Render everything with such words, and see that all of them arrive as text.

    Args:
        base: values with every part switched on.
    """
    case, used = ambiguous(chart, base)
    (made,) = render_many([case], chart=chart)
    found = findings(made.objects, release=case.release, namespace=case.namespace)
    # What the words mean together is no matter here: some would contradict each other.
    of_text = tuple(one for one in found if one.rule in _RULES)
    return Proof("quoting", f"{used} values", {"values": used}, of_text)


def ambiguous(chart: Path, base: Mapping[str, Any]) -> tuple[Case, int]:
    """A value set with such a word in every place that takes one, and in how many.

    Found once a process.

    Raises:
        SpecError: not even the release's own names can be such words.
    """
    return _ambiguous(chart, json.dumps(base, sort_keys=True))


@lru_cache(maxsize=16)
def _ambiguous(chart: Path, base: str) -> tuple[Case, int]:
    pending = [
        (leaf, word)
        for leaf in leaves(chart)
        if not leaf.is_section and (word := _word(leaf)) is not None
    ]
    values = json.loads(base) | {"fullnameOverride": NAME}
    if isinstance(refused := _asked(chart, [values])[0], SpecError):
        raise refused
    # Each place alone, all in one call, so that few of those that are tried together are refused.
    quick = merged(values, {"monitoring": dict.fromkeys(LONG)})
    fits = _fitting(chart, quick, pending)
    values, used = _grown(chart, values, fits)
    # What is refused alone may be right beside all the others.
    rest = [one for one in pending if one not in fits]
    values, more = _grown(chart, values, _fitting(chart, values, rest))
    return Case(values, RELEASE, NAMESPACE), used + more


def _fitting(
    chart: Path, values: Mapping[str, Any], pending: Sequence[tuple[Leaf, Any]]
) -> list[tuple[Leaf, Any]]:
    """Those that are not refused when each comes alone."""
    found = _asked(chart, [_with(values, one) for one in pending])
    return [
        one for one, answer in zip(pending, found, strict=True) if not isinstance(answer, SpecError)
    ]


def _grown(
    chart: Path, values: dict[str, Any], pending: Sequence[tuple[Leaf, Any]]
) -> tuple[dict[str, Any], int]:
    """All places at once; where that is refused, halves, until the refused ones are left out."""
    used = 0
    queue = [list(pending)] if pending else []
    while queue:
        part = queue.pop(0)
        more = values
        for one in part:
            more = _with(more, one)
        if not isinstance(_asked(chart, [more])[0], SpecError):
            values, used = more, used + len(part)
        elif len(part) > 1:
            middle = len(part) // 2
            queue[:0] = [part[:middle], part[middle:]]
    return values, used


def _with(values: Mapping[str, Any], one: tuple[Leaf, Any]) -> dict[str, Any]:
    leaf, word = one
    return placed(_over(values, leaf.around), leaf.path, word)


def _asked(chart: Path, sets: Sequence[Mapping[str, Any]]) -> list[Any]:
    return list(texts([Case(values, RELEASE, NAMESPACE) for values in sets], chart=chart))


def _word(leaf: Leaf) -> Any:
    """Such a word, or a list or a map of one; None where none is taken, or a name is meant."""
    if leaf.path[0] in ("nameOverride", "fullnameOverride") or "enum" in leaf.schema:
        return None
    for word in WORDS:
        for value in (word, [word], {"456": word}, {"word": word}):
            if leaf.accepts(value) and leaf.schema.get("type") in _TYPES[type(value)]:
                return value
    return None


_TYPES: Mapping[type, tuple[str, ...]] = {str: ("string",), list: ("array",), dict: ("object",)}


def _over(values: Mapping[str, Any], around: Mapping[str, Any]) -> dict[str, Any]:
    """The values, and what a place needs where they do not say it."""
    result = dict(values)
    for key, value in around.items():
        there = result.get(key)
        if isinstance(value, Mapping) and isinstance(there, Mapping):
            result[key] = _over(there, value)
        elif not there:
            result[key] = value
    return result
