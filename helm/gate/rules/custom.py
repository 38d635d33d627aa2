"""Custom resources against the closed schemas of helm/gate/custom, CEL conditions included."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import cel
import jsonschema_rs

from tocsin.helm.gate.custom import monitoring, ray
from tocsin.helm.gate.custom.declare import RULES, Schema
from tocsin.helm.gate.manifest import Manifest
from tocsin.helm.gate.rule import Complaint, on_object

RESOURCES = ray.RESOURCES | monitoring.RESOURCES
GROUPS = ("ray.io/", "monitoring.coreos.com/")


@on_object("custom.schema")
def schema(one: Manifest) -> Iterator[Complaint]:
    """A custom resource has fields that its API knows, of the types and words it takes."""
    if not one.api_version.startswith(GROUPS):
        return
    if (one.api_version, one.kind) not in RESOURCES:
        yield Complaint("kind", f"{one.api_version} {one.kind}", "a kind of helm/gate/custom")
        return
    for error in _validator(one.api_version, one.kind).iter_errors(one.body):
        path = ".".join(str(part) for part in error.instance_path)
        yield Complaint(path, f"{error.message:.200}", f"what {one.kind} takes")


@on_object("custom.conditions")
def conditions(one: Manifest) -> Iterator[Complaint]:
    """Fields of a custom resource fit each other, as its conditions demand."""
    declared = RESOURCES.get((one.api_version, one.kind))
    if declared is not None:
        yield from _conditions(declared, one.body, "")


def readable(expression: str) -> str:
    """What is wrong with a CEL expression; empty when it can be read."""
    try:
        _program(expression)
    except ValueError as problem:
        return f"{problem!s:.120}"
    return ""


def _conditions(declared: Schema, value: Any, path: str) -> Iterator[Complaint]:
    for expression, demand in declared.get(RULES, {}).items():
        if isinstance(value, Mapping | list) and not _holds(expression, value):
            yield Complaint(path.removeprefix("."), "other", demand)
    if isinstance(value, Mapping):
        fields = declared.get("properties", {})
        for key, inner in value.items():
            if key in fields:
                yield from _conditions(fields[key], inner, f"{path}.{key}")
    elif isinstance(value, list) and "items" in declared:
        for index, inner in enumerate(value):
            yield from _conditions(declared["items"], inner, f"{path}[{index}]")


def _holds(expression: str, value: Any) -> bool:
    """Whether the condition is true; what cannot be evaluated is not."""
    try:
        return _program(expression).execute({"self": value}) is True
    except (ValueError, TypeError, RuntimeError, KeyError):
        return False


@cache
def _program(expression: str) -> cel.Program:
    return cel.compile(expression)


@cache
def _validator(api_version: str, kind: str) -> jsonschema_rs.Draft202012Validator:
    return jsonschema_rs.Draft202012Validator(RESOURCES[api_version, kind])
