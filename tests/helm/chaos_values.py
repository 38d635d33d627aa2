"""Value sets of the chaos tests, and how a rendered chart is asked for one object."""

from collections.abc import Mapping
from typing import Any

from tocsin.helm.gate.manifest import Manifest
from tocsin.helm.gate.render import merged, render

Values = dict[str, Any]

ON: Values = {"chaos": {"enabled": True}}
ARMED: Values = {"worker": {"chaosTarget": True}, "chaos": {"enabled": True, "dryRun": False}}
EMPTY_EXPERIMENT = "{apiVersion: chaos/v1, kind: Experiment, name: quiet, seed: 1}"
CLUSTER: Values = {"topology": "cluster"}


def over(*sets: Mapping[str, Any]) -> Values:
    """Value sets laid over each other, the last one on top."""
    result: Values = {}
    for one in sets:
        result = merged(result, one)
    return result


def with_chaos(**changes: Any) -> Values:
    """Chaos switched on, with changes of its own section."""
    return over(ON, {"chaos": changes})


def experiment(text: str) -> Values:
    """Values that bring an experiment of one's own."""
    return {"chaos": {"experiment": {"text": text}}}


def one(values: Values, kind: str, name: str = "", **how: Any) -> dict[str, Any]:
    """The only rendered object of a kind, and of a name where it is given; runs are chaos runs."""
    found = named(render(values, **how), kind, name)
    if kind in ("Job", "RayJob"):  # the topology cluster has a RayJob that starts the service
        found = [body for body in found if component(body) == "chaos"]
    assert len(found) == 1, f"{len(found)} of kind {kind} {name}"
    return found[0]


def component(body: Mapping[str, Any]) -> str:
    """Which part of the release an object belongs to."""
    return str(body["metadata"].get("labels", {}).get("app.kubernetes.io/component", ""))


def named(objects: list[Manifest], kind: str, name: str = "") -> list[dict[str, Any]]:
    """Bodies of a kind, of one name where it is given."""
    return [
        item.body
        for item in objects
        if item.kind == kind and name in ("", item.body["metadata"]["name"])
    ]
