"""What is generated is what is committed: values.yaml, its schema, its page, the chart's files."""

import json
from pathlib import Path

import pytest
import yaml

from tests.checkout import ROOT
from tocsin.helm.generate import generated, stale
from tocsin.helm.values.page import defaults, values_page
from tocsin.helm.values.root import ChartValues
from tocsin.helm.values.schema import Schema, leaves, values_schema

TEXTS = generated(ROOT)


@pytest.mark.parametrize("path", sorted(TEXTS), ids=lambda path: path.name)
def test_a_generated_file_is_what_its_declarations_say(path: Path) -> None:
    """A value that was declared and not generated anew would be missing from the chart."""
    assert path.read_text(encoding="utf-8") == TEXTS[path], "run `make docs`"


def test_no_file_is_left_that_nobody_declares() -> None:
    """A file whose declaration went away would still be packed into the chart."""
    assert stale(ROOT) == []


def test_values_yaml_is_read_back_as_the_declared_defaults() -> None:
    """Comments, quoting and nesting lose nothing on the way."""
    text = (ROOT / "helm/tocsin/values.yaml").read_text(encoding="utf-8")
    assert yaml.safe_load(text) == defaults()
    assert ChartValues.model_validate(defaults()) == ChartValues()


def _objects(schema: Schema, path: str = "") -> list[tuple[str, Schema]]:
    found = [(path or ".", schema)] if schema.get("type") == "object" else []
    for name, inner in schema.get("properties", {}).items():
        found += _objects(inner, f"{path}.{name}")
    for inner in schema.get("patternProperties", {}).values():
        found += _objects(inner, f"{path}.*")
    if "items" in schema:
        found += _objects(schema["items"], f"{path}[]")
    for key in ("anyOf", "oneOf", "allOf"):
        for inner in schema.get(key, []):
            found += _objects(inner, path)
    return found


def test_the_schema_is_closed_at_every_level() -> None:
    """A misspelt key is refused wherever it stands; only a parent chart's globals are not ours."""
    open_objects = [
        path
        for path, inner in _objects(values_schema())
        if inner.get("additionalProperties") is not False and path != ".global"
    ]
    assert open_objects == []


def test_every_value_says_what_it_is() -> None:
    """values.yaml and the page would have a value without a word on it."""
    silent = [
        ".".join(path) for path, leaf in leaves(values_schema()) if not leaf.get("description")
    ]
    assert silent == []


def test_every_value_stands_on_the_page() -> None:
    """A reader sets a value without opening a template."""
    page = values_page()
    paths = [".".join(path) for path, _ in leaves(values_schema()) if path != ("global",)]
    assert [path for path in paths if f"| `{path}` |" not in page] == []


def test_every_value_is_required_so_that_null_is_refused() -> None:
    """Helm drops a key that is set to null before it validates: only `required` sees that."""
    schema = values_schema()
    assert set(schema["required"]) == set(schema["properties"]) - {"global"}
    assert "tag" in schema["properties"]["image"]["required"]
    assert json.dumps(schema).count('"null"') == 0
