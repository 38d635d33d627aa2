"""The JSON schema of the values: inlined, closed at every level, nothing in it may be null."""

from collections.abc import Iterator, Mapping
from typing import Any

from tocsin.checker.contract import registry
from tocsin.helm.values.root import ChartValues
from tocsin.helm.values.section import STORE
from tocsin.helm.values.serving import OF_THE_CHART

Schema = dict[str, Any]
DIALECT = "http://json-schema.org/draft-07/schema#"
_DROPPED = ("title", "default", "$defs")
# What pydantic calls a bound that stands behind a validator of one's own.
_BOUNDS = {"ge": "minimum", "le": "maximum", "gt": "exclusiveMinimum", "lt": "exclusiveMaximum"}


def values_schema() -> Schema:
    """What Helm holds values against before it renders anything."""
    raw = ChartValues.model_json_schema(by_alias=True, mode="validation")
    closed = _closed(raw, raw.get("$defs", {}), merged=True)
    checker = closed["properties"]["checker"]["properties"]
    checker["thresholds"] = _thresholds(checker["thresholds"].get("description", ""))
    # A program on a desk may archive into a folder by its path; a pod has none that outlives it.
    checker["journal"]["properties"]["archive_url"] |= {"pattern": STORE, "maxLength": 1024}
    arguments = closed["properties"]["serve"]["properties"]["args"]
    for name in OF_THE_CHART:
        del arguments["properties"][name]
    arguments["required"] = list(arguments["properties"])
    # Helm hands a parent's globals to every chart below it; nothing here reads them.
    closed["properties"]["global"] = {"type": "object", "description": "A parent chart's globals."}
    return {"$schema": DIALECT, **closed}


def leaves(schema: Schema, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Schema]]:
    """Every key of values.yaml that holds no section of its own, with its schema."""
    for name, inner in schema.get("properties", {}).items():
        below = (*path, name)
        if "properties" in inner and inner.get("required"):
            yield from leaves(inner, below)
        else:
            yield below, inner


def _closed(node: Schema, definitions: Mapping[str, Schema], *, merged: bool) -> Schema:
    """The node with references resolved and objects closed.

    Helm merges values into the defaults before it validates, so a key is missing only when somebody
    set it to null: where that merging happens, all keys are required. Inside lists, and inside maps
    whose keys a person chooses, nothing is merged and only keys without a default are required.
    """
    node = _followed(node, definitions)
    out = {_BOUNDS.get(key, key): value for key, value in node.items() if key not in _DROPPED}
    if "properties" in node:
        out["properties"] = {
            name: _closed(inner, definitions, merged=merged)
            for name, inner in node["properties"].items()
        }
        out["required"] = list(node["properties"]) if merged else node.get("required", [])
        if not out["required"]:
            del out["required"]
    elif "patternProperties" in node:
        out["patternProperties"] = {
            pattern: _closed(inner, definitions, merged=False)
            for pattern, inner in node["patternProperties"].items()
        }
    elif "enum" in (names := _followed(node.get("propertyNames", {}), definitions)):
        # A map by the words of an enumeration: each word is a key that may be left out.
        del out["propertyNames"]
        inner = _closed(node["additionalProperties"], definitions, merged=False)
        out["properties"] = dict.fromkeys(names["enum"], inner)
    if node.get("type") == "object":
        out["additionalProperties"] = False
    for key in ("anyOf", "oneOf", "allOf"):
        if key in node:
            out[key] = [_closed(inner, definitions, merged=merged) for inner in node[key]]
    if "items" in node:
        out["items"] = _closed(node["items"], definitions, merged=False)
    return out


def _followed(node: Schema, definitions: Mapping[str, Schema]) -> Schema:
    """The node, or what it refers to with what it says besides."""
    if "$ref" not in node:
        return node
    siblings = {key: value for key, value in node.items() if key != "$ref"}
    return {**definitions[node["$ref"].rpartition("/")[2]], **siblings}


def _thresholds(description: str) -> Schema:
    """Only limits that a check declares can be set."""
    checks = {
        unit.id: {
            "type": "object",
            "properties": {
                limit: {"type": "number", "exclusiveMinimum": 0} for limit in unit.thresholds
            },
            "additionalProperties": False,
        }
        for unit in registry().values()
        if unit.thresholds
    }
    return {
        "type": "object",
        "description": description,
        "properties": checks,
        "additionalProperties": False,
    }
