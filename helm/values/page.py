"""values.yaml with its comments, and the page that lists every value (docs/values.md)."""

import json
import textwrap
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from tocsin.core.markdown import cell
from tocsin.helm.values import access, chaos, schedule, section
from tocsin.helm.values.root import ChartValues
from tocsin.helm.values.schema import Schema, leaves, values_schema

COLUMNS = 100
FORMS = {**section.FORMS, **access.FORMS, **schedule.FORMS, **chaos.FORMS}
_PATTERN_COLUMNS = 40
YAML_HEAD = """\
# Values of the chart tocsin, written by `python -m tocsin.helm.generate` from the declarations in
# helm/values/; edit those, not this file. docs/values.md lists every value with its limits.
"""
PAGE_HEAD = """# Values of the chart

Every value of `helm/tocsin`, with its default and its limits. This page is written by `make docs`
from the declarations in `helm/values/`; edit those, not this page. A key that is not listed here,
a wrong type and a `null` are refused by `values.schema.json` before anything is rendered; the one
use of `null` is to take a worker group away.
"""
GROUPS = """
A group under `workerGroups` takes the keys of `worker`, each of them optional: what a group does
not say it has from `worker`.
"""


def values_yaml() -> str:
    """The chart's values.yaml: every value, its default, and above it what it is."""
    lines: list[str] = []
    _section(lines, defaults(), values_schema(), indent=0)
    return YAML_HEAD + "\n".join(lines) + "\n"


def values_page() -> str:
    """docs/values.md: one table a section."""
    schema, values = values_schema(), defaults()
    parts = [PAGE_HEAD]
    own = {
        name: inner
        for name, inner in schema["properties"].items()
        if name in values and not _is_section(inner)
    }
    rows = [row for name, inner in own.items() for row in _rows((name,), inner, values[name])]
    parts.append(_table("Release", "", rows))
    for name, inner in schema["properties"].items():
        if name in own or name not in values:
            continue
        rows = [
            row
            for path, leaf in leaves(inner)
            for row in _rows((name, *path), leaf, _at(values[name], path))
        ]
        parts.append(_table(f"`{name}`", inner.get("description", ""), rows))
        if name == "worker":
            parts.append(GROUPS)
    return "\n".join(parts)


def defaults() -> dict[str, Any]:
    """The default of every value, as values.yaml holds them."""
    plain: dict[str, Any] = _kept(_plain(ChartValues()), values_schema())
    return plain


def _kept(value: Any, schema: Schema) -> Any:
    """The value without keys that the schema does not let anybody set."""
    if not isinstance(value, dict) or "properties" not in schema:
        return value
    known = schema["properties"]
    return {key: _kept(inner, known[key]) for key, inner in value.items() if key in known}


def _plain(value: object) -> Any:
    if isinstance(value, BaseModel):
        fields = type(value).model_fields
        return {fields[name].alias or name: _plain(getattr(value, name)) for name in fields}
    if isinstance(value, Mapping):
        # A map of a person's own says only what differs; it is merged by the templates.
        return {
            key: inner.model_dump(mode="json", by_alias=True, exclude_defaults=True)
            if isinstance(inner, BaseModel)
            else _plain(inner)
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [
            inner.model_dump(mode="json", by_alias=True, exclude_defaults=True)
            if isinstance(inner, BaseModel)
            else _plain(inner)
            for inner in value
        ]
    return json.loads(json.dumps(value))


def _section(lines: list[str], values: Mapping[str, Any], schema: Schema, indent: int) -> None:
    margin = " " * indent
    properties = schema.get("properties", {})
    for key, value in values.items():
        inner = properties.get(key, {})
        if indent == 0:
            lines.append("")
        text = inner.get("description", "")
        width = COLUMNS - indent - 2
        lines += [f"{margin}# {line}" for line in textwrap.wrap(" ".join(text.split()), width)]
        if isinstance(value, dict) and value:
            lines.append(f"{margin}{_key(key)}:")
            _section(lines, value, inner, indent + 2)
        elif isinstance(value, list) and value:
            lines.append(f"{margin}{_key(key)}:")
            lines += [f"{margin}  - {json.dumps(item, ensure_ascii=False)}" for item in value]
        else:
            lines.append(f"{margin}{_key(key)}: {json.dumps(value, ensure_ascii=False)}")


def _key(key: str) -> str:
    return key if key.replace("_", "").isalnum() else json.dumps(key)


def _is_section(schema: Schema) -> bool:
    return "properties" in schema and bool(schema.get("required"))


def _at(values: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        values = values[name]
    return values


def _table(title: str, text: str, rows: list[str]) -> str:
    head = ["| value | default | takes | what it is |", "|---|---|---|---|"]
    said = [f"{text}\n"] if text else []
    return (
        "\n".join([f"## {title}\n", *said, *head, *rows, ""]) if rows else f"## {title}\n\n{text}\n"
    )


def _rows(path: tuple[str, ...], schema: Schema, default: object) -> list[str]:
    """The row of a value, and one for each key of its items."""
    name = ".".join(path)
    rows = [_row(name, schema, f"`{json.dumps(default, ensure_ascii=False)}`")]
    items = schema.get("items", {})
    needed = items.get("required", [])
    for key, inner in items.get("properties", {}).items():
        for below, leaf in [*leaves(inner, (key,))] or [((key,), inner)]:
            said = "must be given" if key in needed else ""
            rows.append(_row(f"{name}[].{'.'.join(below)}", leaf, said))
    return rows


def _row(name: str, schema: Schema, default: str) -> str:
    text = " ".join(schema.get("description", "").split())
    return f"| `{name}` | {default} | {cell(_takes(schema))} | {cell(text)} |"


def _takes(schema: Schema) -> str:
    """What a value may be, in words."""
    if "enum" in schema:
        return ", ".join(f"`{json.dumps(item)}`" for item in schema["enum"])
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if "anyOf" in schema:
        return " or ".join(_takes(inner) for inner in schema["anyOf"])
    kind = schema.get("type", "object")
    if kind == "array":
        return f"list of {_takes(schema['items'])}"
    if kind == "object":
        return _object(schema)
    limits = _limits(schema)
    return limits[0] if schema.get("pattern") in FORMS else " ".join([kind, *limits])


def _object(schema: Schema) -> str:
    if schema.get("properties"):
        names = ", ".join(f"`{name}`" for name in schema["properties"])
        return f"object of {names}"
    inner = next(iter(schema.get("patternProperties", {}).values()), None)
    if inner is None:
        return "empty object"
    if "properties" in inner:
        return "map of objects with the keys of `worker`"
    return f"map of {_takes(inner)}"


def _limits(schema: Schema) -> list[str]:
    limits = []
    for key, sign in (
        ("minimum", "≥"),
        ("exclusiveMinimum", ">"),
        ("maximum", "≤"),
        ("exclusiveMaximum", "<"),
    ):
        if key in schema:
            limits.append(f"{sign} {schema[key]:g}")
    pattern = schema.get("pattern", "")
    if pattern in FORMS:
        return [FORMS[pattern]]
    if pattern and len(pattern) <= _PATTERN_COLUMNS:
        limits.append(f"`{pattern}`")
    return limits
