"""A release that no rule complains of, and edits that turn it into one that some rule does."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tocsin.helm.gate.findings import Finding, findings
from tocsin.helm.gate.manifest import Manifest, manifest

Edits = Mapping[str, Any]
# As a value: take the key away.
GONE = object()
# Where the pods are that most edits are about.
HEAD = "service.spec.rayClusterConfig.headGroupSpec.template"
WORKER = "service.spec.rayClusterConfig.workerGroupSpecs.0.template"
CHAOS = "job.spec.template"


def good(key: str) -> Any:
    """One object of the good release, a copy to change at will."""
    return _apart(_read()[key])


def manifests(edits: Edits | None = None) -> list[Manifest]:
    """The release as the gate sees it: `object.path.to.0.key` → the value put there.

    A key that holds dots stands in brackets: `job.metadata.labels.[helm.sh/chart]`. An object
    that is not there is added; GONE takes one away.
    """
    changed = {path.split(".")[0]: None for path in edits or {}}
    tree = {key: good(key) if key in _read() else {} for key in changed}
    for path, value in (edits or {}).items():
        _edit(tree, path, value)
    untouched = [one for key, one in _manifests().items() if key not in changed]
    return untouched + [manifest(one) for one in tree.values()]


def found(edits: Edits | None = None) -> list[Finding]:
    """What the gate finds in the edited release."""
    return findings(manifests(edits))


@cache
def _read() -> dict[str, Any]:
    text = (Path(__file__).parent / "good_release.yaml").read_text()
    objects: dict[str, Any] = yaml.safe_load(text)["objects"]
    return objects


@cache
def _manifests() -> dict[str, Manifest]:
    return {key: manifest(good(key)) for key in _read()}


def _apart(tree: Any) -> Any:
    """A copy in which nothing is shared, as anchors make one mapping of several."""
    if isinstance(tree, dict):
        return {key: _apart(value) for key, value in tree.items()}
    return [_apart(value) for value in tree] if isinstance(tree, list) else tree


def _edit(tree: Any, path: str, value: Any) -> None:
    keys: list[str] = []
    for part in path.replace("[", "\0[").replace("]", "]\0").split("\0"):
        keys += [part[1:-1]] if part.startswith("[") else [key for key in part.split(".") if key]
    for key in keys[:-1]:
        tree = tree[int(key)] if isinstance(tree, list) else tree.setdefault(key, {})
    last: Any = int(keys[-1]) if isinstance(tree, list) else keys[-1]
    if value is GONE:
        del tree[last]
    elif isinstance(tree, list) and last == len(tree):
        tree.append(value)
    else:
        tree[last] = value
