"""Whether a finished answer follows the JSON schema that it promised."""

import json
from collections.abc import Mapping
from typing import Any, NoReturn

from torch import Tensor

from tocsin.checker.contract import check
from tocsin.checker.ratios import alarm, clear
from tocsin.core.calls import StructuredOutputCall
from tocsin.core.errors import EnvironmentFault
from tocsin.core.terms import Priority, Profile


@check(
    "semantic.structured_output",
    priority=Priority.P1,
    impact="the caller's program cannot read the answer that it paid for",
    source="JSON Schema Draft 2020-12; vllm-project/vllm#41739, #48089",
    profile=Profile.GUARD,
    remedy="generate the answer again under the grammar, or return an explicit error",
)
def structured_output(call: StructuredOutputCall) -> Tensor:
    """Infinity where the text is not JSON, does not follow the schema, or the schema is none.

    Args:
        call: the whole text and its schema; references are resolved inside the schema only.

    Returns:
        ratio, [1], float32 on the host, 0 or infinity.

    Raises:
        EnvironmentFault: jsonschema is not installed.
    """
    return alarm(call) if why_not(call.text, call.json_schema) else clear(call)


def why_not(text: str, json_schema: Mapping[str, Any]) -> str:
    """Why a text does not follow a schema, in words; empty when it does."""
    try:
        from jsonschema import Draft202012Validator
        from jsonschema.exceptions import SchemaError
        from referencing import Registry
        from referencing.exceptions import Unresolvable
    except ImportError as error:
        raise EnvironmentFault(
            "structured_output: jsonschema is not installed, expected with the extra `serve`; "
            "pip install 'tocsin[serve]'"
        ) from error
    try:
        Draft202012Validator.check_schema(json_schema)
    except SchemaError as error:
        return f"the schema is not one: {error.message}"
    try:
        answer = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        return f"the text is not JSON: {error}"
    # An empty registry: a reference to elsewhere is an error here, never a download.
    validator = Draft202012Validator(json_schema, registry=Registry())
    try:
        found = next(iter(validator.iter_errors(answer)), None)
    except (Unresolvable, RecursionError) as error:
        return f"the schema cannot be followed: {error}"
    return "" if found is None else f"at {found.json_path}: {found.message}"


def _refuse(constant: str) -> NoReturn:
    """NaN and Infinity are Python's, not JSON's."""
    raise ValueError(f"{constant} is not a JSON value")
