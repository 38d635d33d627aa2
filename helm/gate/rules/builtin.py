"""Built-in kinds against the API of several versions of Kubernetes; unknown fields are refused."""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import jsonschema_rs

from tocsin.helm.gate.manifest import Manifest
from tocsin.helm.gate.podviews import pods
from tocsin.helm.gate.rule import Complaint, on_object

# The oldest that the chart admits, a middle one, the newest that is known.
VERSIONS = ("1.28", "1.33", "1.37")
CUSTOM_GROUPS = ("ray.io/", "monitoring.coreos.com/")
# Since when an API that the chart may use has been stable.
SINCE = {("ValidatingAdmissionPolicy", "1.30"), ("ValidatingAdmissionPolicyBinding", "1.30")}


@on_object("builtin.schema")
def schema(one: Manifest) -> Iterator[Complaint]:
    """A built-in object is one that every supported version of Kubernetes has, field by field."""
    if one.api_version.startswith(CUSTOM_GROUPS):
        for pod in pods(one):
            yield from _nested(pod.path, pod.template)
            for container in pod.injected:
                yield from _nested("(autoscalerOptions)", {"spec": {"containers": [container]}})
        return
    for version in VERSIONS:
        if not any(kind == one.kind and _older(version, since) for kind, since in SINCE):
            yield from _complaints(version, one.api_version, one.kind, one.body)


def _complaints(
    version: str, api_version: str, kind: str, body: Mapping[str, Any]
) -> Iterator[Complaint]:
    validator = _validator(version, api_version, kind)
    if validator is None:
        yield Complaint("kind", f"{api_version} {kind}", f"a kind of Kubernetes {version}")
        return
    for error in validator.iter_errors(body):
        path = ".".join(str(part) for part in error.instance_path)
        yield Complaint(path, f"{error.message:.200}", f"an object of Kubernetes {version}")


def _nested(path: str, template: Mapping[str, Any]) -> Iterator[Complaint]:
    """A pod template in a custom resource, as the built-in kind that has the same content."""
    body = {"apiVersion": "v1", "kind": "PodTemplate", "template": template}
    for version in VERSIONS:
        for found in _complaints(version, "v1", "PodTemplate", body):
            yield found._replace(path=path + found.path.removeprefix("template"))


@cache
def _validator(
    version: str, api_version: str, kind: str
) -> jsonschema_rs.Draft202012Validator | None:
    group, slash, name = api_version.rpartition("/")
    prefix = f"{group.partition('.')[0]}-{name}" if slash else name
    try:
        text = (_folder(version) / f"{kind.lower()}-{prefix}.json").read_text()
    except FileNotFoundError:
        return None
    top = json.loads(text.replace("/api/_definitions.json#/", "#/"))
    found: dict[str, Any] = {}
    _collect(top, _definitions(version), found)
    return jsonschema_rs.Draft202012Validator(top | {"$defs": found})


def _collect(tree: Any, known: Mapping[str, Any], found: dict[str, Any]) -> None:
    """Gather every definition that a schema leads to, and none besides."""
    if isinstance(tree, Mapping):
        reference = tree.get("$ref")
        if isinstance(reference, str):
            name = reference.removeprefix("#/$defs/")
            if name not in found:
                found[name] = known[name]
                _collect(found[name], known, found)
        for value in tree.values():
            _collect(value, known, found)
    elif isinstance(tree, list):
        for value in tree:
            _collect(value, known, found)


@cache
def _definitions(version: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads((_folder(version) / "_definitions.json").read_text())
    definitions: Mapping[str, Any] = found["$defs"]
    return definitions


@cache
def _folder(version: str) -> Any:
    root = files("kubernetes_validate") / "kubernetes-json-schema"
    return root / f"v{version}.0-local-strict"


def _older(version: str, since: str) -> bool:
    return [int(part) for part in version.split(".")] < [int(part) for part in since.split(".")]
