"""`semantic.structured_output`: the answer follows the schema that it promised."""

import sys

import pytest

from tests.checker.calls import SCHEMA
from tocsin.checker.checks.semantic.structured_output import structured_output, why_not
from tocsin.core.calls import StructuredOutputCall
from tocsin.core.errors import EnvironmentFault


@pytest.mark.parametrize("end", range(1, 31))
def test_a_json_text_cut_anywhere_alarms(end: int) -> None:
    """vllm-project/vllm#41739: a stream that ends early is not an answer."""
    text = '{"city": "Trier", "degrees": 1}'
    assert structured_output(StructuredOutputCall(text=text, json_schema=SCHEMA)).item() == 0
    cut = StructuredOutputCall(text=text[:end], json_schema=SCHEMA)
    assert structured_output(cut).item() == float("inf")


def test_says_where_the_answer_leaves_the_schema() -> None:
    """The path of the value and the rule that it breaks."""
    assert why_not('{"city": 3}', SCHEMA) == "at $.city: 3 is not of type 'string'"
    assert why_not("nonsense", SCHEMA).startswith("the text is not JSON")
    assert why_not("{}", {"type": "objekt"}).startswith("the schema is not one")


def test_a_reference_to_elsewhere_is_never_downloaded() -> None:
    """A schema comes from a user: it must not make the server fetch addresses."""
    schema = {"$ref": "https://example.invalid/schema.json"}
    assert why_not("{}", schema).startswith("the schema cannot be followed")


def test_references_inside_the_schema_work() -> None:
    """The nearest miss: definitions of the schema's own."""
    schema = {"$defs": {"n": {"type": "number"}}, "$ref": "#/$defs/n"}
    assert why_not("1.5", schema) == ""
    assert why_not('"x"', schema) != ""


def test_a_missing_library_is_said_and_not_a_clean_verdict(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without jsonschema nothing can be said about an answer."""
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    with pytest.raises(EnvironmentFault, match=r"pip install 'tocsin\[serve\]'"):
        why_not("{}", SCHEMA)
