"""A small language for closed schemas: a mark after a key makes it required, rules are CEL."""

from collections.abc import Mapping
from typing import Any

Schema = dict[str, Any]
# Keyword of our own: CEL conditions on the value at this place, with what each demands.
RULES = "x-rules"

INT32_MAX = 2**31 - 1
TEXT: Schema = {"type": "string"}
WORD: Schema = {"type": "string", "minLength": 1}
FLAG: Schema = {"type": "boolean"}
COUNT: Schema = {"type": "integer", "minimum": 0, "maximum": INT32_MAX}
POSITIVE: Schema = {"type": "integer", "minimum": 1, "maximum": INT32_MAX}
PORT: Schema = {"type": "integer", "minimum": 1, "maximum": 65535}
LABELS: Schema = {"type": "object", "additionalProperties": TEXT}
# Held to the built-in schema of a Pod elsewhere, and to every rule of pods.
POD_TEMPLATE: Schema = {"type": "object", "required": ["spec"]}
METADATA_KEYS = ("name", "namespace", "labels", "annotations")


def closed(
    fields: Mapping[str, Schema], *, rules: Mapping[str, str] | None = None, least: int = 0
) -> Schema:
    """An object with these fields and no others.

    Args:
        fields: name → schema; a name that ends in `!` is required.
        rules: CEL condition on `self` → what it demands.
        least: how many fields it has at least.
    """
    schema: Schema = {
        "type": "object",
        "properties": {name.removesuffix("!"): field for name, field in fields.items()},
        "required": [name.removesuffix("!") for name in fields if name.endswith("!")],
        "additionalProperties": False,
        "minProperties": least,
    }
    return schema | ({RULES: dict(rules)} if rules else {})


def listed(entry: Schema, *, least: int = 0, by: str = "") -> Schema:
    """A list of such entries.

    Args:
        entry: schema of each.
        least: how many there are at least.
        by: field that tells entries apart; each of its values comes once.
    """
    schema: Schema = {"type": "array", "items": entry, "minItems": least}
    if by:
        unique = f"self.all(one, self.exists_one(other, other.{by} == one.{by}))"
        schema[RULES] = {unique: f"each {by} once"}
    return schema


def one_of(*words: str) -> Schema:
    """One of these words."""
    return {"enum": list(words)}


def pattern(expression: str) -> Schema:
    """A text of this form, from its first character to its last."""
    return {"type": "string", "pattern": f"^({expression})$"}


def resource(api_version: str, kind: str, spec: Schema) -> Schema:
    """A whole object of a kind."""
    metadata = closed({"name!": WORD, "namespace": WORD, "labels": LABELS, "annotations": LABELS})
    return closed(
        {
            "apiVersion!": one_of(api_version),
            "kind!": one_of(kind),
            "metadata!": metadata,
            "spec!": spec,
        }
    )
