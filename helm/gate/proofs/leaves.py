"""Every value of the chart as its schema declares it, with right and wrong values for each."""

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft7Validator

Schema = Mapping[str, Any]
Place = tuple[str | int, ...]

_MISSING = object()
# Words of every shape that the chart's patterns ask for: the first that fits is the alternative.
WORDS = (
    "another",
    "other",
    "other-value",
    "Other.Value_1",
    "3Gi",
    "3",
    "350m",
    "9.9.9",
    "45s",
    "7m",
    "https://other.example/path",
    "http://other.example:9093",
    "redis.other:6380",
    "other.example/device",
    "sha256:" + "ab" * 32,
    "17 4 * * 1",
    "Europe/Berlin",
    "s3://other/archive",
    "file:///var/lib/tocsin/other",
    "OTHER_NAME",
    "10.1.0.0/16",
    "name: other\n",
    '{severity="critical"}',
    "severity=critical",
    "/other",
    "other/path",
    "other.checks",
    "kube-system",
)


@dataclass(frozen=True)
class Leaf:
    """One value, or one section, at its place.

    Attributes:
        path: keys from the root; a number is an element of a list that `around` makes.
        schema: its own schema, references followed.
        default: what values.yaml says; absent within a list or a map that is empty there.
        around: values under which the place exists.
        required: whether its object must hold it.
    """

    path: Place
    schema: Schema
    root: Schema
    default: Any = _MISSING
    around: Mapping[str, Any] = field(default_factory=dict)
    required: bool = True

    @property
    def name(self) -> str:
        """The path in a person's notation: `worker.nodeAffinity.required[0].key`."""
        text = ""
        for part in self.path:
            text += f"[{part}]" if isinstance(part, int) else f".{part}"
        return text.removeprefix(".")

    @property
    def is_section(self) -> bool:
        """Whether it is an object with declared keys."""
        return bool(self.schema.get("properties"))

    @cached_property
    def validator(self) -> Any:
        """Judges a value of this place alone."""
        return Draft7Validator({**self.schema, "$defs": self.root.get("$defs", {})})

    def accepts(self, value: Any) -> bool:
        """Whether the schema takes this value at this place."""
        return bool(self.validator.is_valid(value))

    def values(self, value: Any) -> dict[str, Any]:
        """A value set that says `value` here and nothing else but what the place needs."""
        return placed(self.around, self.path, value)

    def within(self, values: Mapping[str, Any]) -> Any:
        """What a value set says here; None where it says nothing."""
        found = _looked_up(values, self.path)
        return None if found is _MISSING else found

    def is_within(self, values: Mapping[str, Any]) -> bool:
        """Whether a value set says something here."""
        return _looked_up(values, self.path) is not _MISSING

    def alternatives(self, count: int) -> list[Any]:
        """The first few right values that are not the default."""
        found: list[Any] = []
        there = (self.default, _looked_up(self.around, self.path))
        for value in _candidates(self):
            if len(found) == count:
                break
            if value not in there and value not in found and self.accepts(value):
                found.append(value)
        return found

    @property
    def is_said(self) -> bool:
        """Whether the chart's own values say it, so that null would take it away."""
        return self.default is not _MISSING

    def alternative(self) -> Any:
        """A right value that is not the default; None where none is known."""
        return next(iter(self.alternatives(1)), None)


def leaves(chart: Path) -> list[Leaf]:
    """Every section and every value below the root, in the order of the schema."""
    schema = json.loads((chart / "values.schema.json").read_text(encoding="utf-8"))
    defaults = yaml.safe_load((chart / "values.yaml").read_text(encoding="utf-8")) or {}
    return list(_below((), schema, schema, defaults, {}, 0))


def placed(base: Mapping[str, Any], path: Place, value: Any) -> dict[str, Any]:
    """A copy of `base` in which `path` leads to `value`."""
    result: Any = copy.deepcopy(dict(base))
    here = result
    for part, following in pairwise(path):
        if isinstance(part, int):
            here = here[part]
            continue
        nested = here.get(part)
        if not isinstance(nested, dict if isinstance(following, str) else list):
            nested = {} if isinstance(following, str) else [{}]
            here[part] = nested
        here = nested
    here[path[-1]] = copy.deepcopy(value)
    return dict(result)


def _looked_up(values: Any, path: Place) -> Any:
    for part in path:
        try:
            values = values[part]
        except (KeyError, IndexError, TypeError):
            return _MISSING
    return values


def sample(schema: Schema, root: Schema) -> Any:
    """The smallest right value of a schema: what it requires, defaults where it has them."""
    schema = resolved(schema, root)
    if "default" in schema:
        return copy.deepcopy(schema["default"])
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    for union in ("anyOf", "oneOf"):
        if union in schema:
            return sample(schema[union][0], root)
    kind = schema.get("type")
    if kind == "object":
        properties = schema.get("properties", {})
        made = {name: sample(properties[name], root) for name in schema.get("required", ())}
        for name in properties if not made else ():
            made[name] = sample(properties[name], root)
            break
        return made
    if kind == "array":
        count = int(schema.get("minItems", 0))
        return [sample(schema["items"], root) for _ in range(count)]
    probe = Leaf((), schema, root)
    return next((value for value in _candidates(probe) if probe.accepts(value)), None)


def resolved(schema: Schema, root: Schema) -> Schema:
    """A schema with its references followed and single-branch compositions merged."""
    while "$ref" in schema or len(schema.get("allOf", ())) == 1:
        if "$ref" in schema:
            target: Any = root
            for part in schema["$ref"].removeprefix("#/").split("/"):
                target = target[part]
            schema = {**target, **{k: v for k, v in schema.items() if k != "$ref"}}
        else:
            schema = {**schema["allOf"][0], **{k: v for k, v in schema.items() if k != "allOf"}}
    return schema


def _below(
    path: Place, schema: Schema, root: Schema, default: Any, around: Mapping[str, Any], depth: int
) -> Iterator[Leaf]:
    schema = resolved(schema, root)
    known = default if isinstance(default, Mapping) else {}
    required = set(schema.get("required", ()))
    for name, declared in schema.get("properties", {}).items():
        if not path and name == "global":
            continue  # helm's own, not the chart's
        yield from _one(
            (*path, name),
            declared,
            root,
            known.get(name, _MISSING),
            around,
            name in required,
            depth,
        )


def _one(
    path: Place,
    declared: Schema,
    root: Schema,
    default: Any,
    around: Mapping[str, Any],
    required: bool,
    depth: int,
) -> Iterator[Leaf]:
    schema = resolved(declared, root)
    leaf = Leaf(path, schema, root, default, around, required)
    yield leaf
    if depth > 12:
        return
    if leaf.is_section:
        yield from _below(path, schema, root, default, around, depth + 1)
    item = schema.get("items")
    if isinstance(item, Mapping):
        inner = resolved(item, root)
        if inner.get("properties"):
            base = placed(around, path, [sample(inner, root)])
            yield from _below((*path, 0), inner, root, {}, base, depth + 1)
    extra = schema.get("additionalProperties")
    if not isinstance(extra, Mapping) or not extra:
        extra = next(iter(schema.get("patternProperties", {}).values()), None)
    if isinstance(extra, Mapping) and not leaf.is_section:
        inner = resolved(extra, root)
        keys = list(default) if isinstance(default, Mapping) and default else [_key(schema, root)]
        if inner.get("properties"):
            known = default.get(keys[0], {}) if isinstance(default, Mapping) else {}
            yield from _below((*path, keys[0]), inner, root, known, around, depth + 1)


def _key(schema: Schema, root: Schema) -> str:
    names = dict(schema.get("propertyNames", {}))
    pattern = next(iter(schema.get("patternProperties", {})), None)
    if pattern:
        names.setdefault("pattern", pattern)
    probe = Leaf((), {"type": "string", **names}, root)
    return next((word for word in WORDS if probe.accepts(word)), "other")


def _candidates(leaf: Leaf) -> Iterator[Any]:
    schema = leaf.schema
    yield from schema.get("enum", ())
    for union in ("anyOf", "oneOf"):
        for branch in schema.get(union, ()):
            yield from _candidates(Leaf(leaf.path, resolved(branch, leaf.root), leaf.root))
    kinds = schema.get("type", ())
    kinds = {kinds} if isinstance(kinds, str) else set(kinds)
    if "boolean" in kinds:
        yield from (True, False)
    if kinds & {"integer", "number"}:
        low = schema.get("minimum", schema.get("exclusiveMinimum", 0))
        high = schema.get("maximum", schema.get("exclusiveMaximum", low + 1000))
        start = leaf.default if isinstance(leaf.default, int | float) else low
        yield from (start + 1, start - 1, low, high, start + 0.5, low + 0.25, (low + high) / 2)
    if "string" in kinds:
        yield from WORDS
    if "array" in kinds:
        item = sample(schema.get("items", {}), leaf.root)
        yield [item]
        known = leaf.default if isinstance(leaf.default, list) else []
        inner = Leaf((), resolved(schema.get("items", {}), leaf.root), leaf.root)
        for word in _candidates(inner):
            yield [*known, word]
            yield [word]
        yield known[:-1]
    if "object" in kinds and not leaf.is_section:
        extra = schema.get("additionalProperties")
        if not isinstance(extra, Mapping):
            extra = next(iter(schema.get("patternProperties", {}).values()), {})
        there = leaf.default if isinstance(leaf.default, Mapping) else {}
        yield {**there, _key(schema, leaf.root): sample(extra, leaf.root)}
