"""What the tests of the Ray workloads render, and how they look into it."""

from collections.abc import Mapping
from typing import Any

import yaml

from tocsin.helm.gate.manifest import Manifest
from tocsin.helm.gate.render import render

CLUSTER: Mapping[str, Any] = {"topology": "cluster"}
GPU: Mapping[str, Any] = {"worker": {"gpu": {"count": 1}}, "serve": {"numGpus": 1}}
AUTOSCALING: Mapping[str, Any] = {"ray": {"autoscaling": {"enabled": True}}}
REDIS: Mapping[str, Any] = {
    "ray": {
        "gcsFaultTolerance": {
            "enabled": True,
            "redisAddress": "redis.storage:6379",
            "passwordSecret": {"name": "redis"},
        }
    }
}


def nested(path: str, value: Any) -> dict[str, Any]:
    """`{"a": {"b": value}}` for the path a.b."""
    first, _, rest = path.partition(".")
    return {first: nested(rest, value) if rest else value}


def of(values: Mapping[str, Any], kind: str, name: str = "") -> Manifest:
    """The one object of a kind (and a name) that these values render to."""
    (found,) = (
        item for item in render(values) if item.kind == kind and name in ("", item.metadata["name"])
    )
    return found


def ray_cluster(values: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of the Ray cluster, whichever kind carries it."""
    if values.get("topology") == "cluster":
        spec = dict(of(values, "RayCluster").body["spec"])
        spec.pop("upgradeStrategy")
        return spec
    config: dict[str, Any] = of(values, "RayService").body["spec"]["rayClusterConfig"]
    return config


def head(values: Mapping[str, Any]) -> dict[str, Any]:
    """The head's pod template."""
    template: dict[str, Any] = ray_cluster(values)["headGroupSpec"]["template"]
    return template


def groups(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Name → worker group."""
    return {group["groupName"]: group for group in ray_cluster(values)["workerGroupSpecs"]}


def worker(values: Mapping[str, Any], group: str = "checked") -> dict[str, Any]:
    """The pod template of one worker group."""
    template: dict[str, Any] = groups(values)[group]["template"]
    return template


def container(template: Mapping[str, Any]) -> dict[str, Any]:
    """The Ray container of a pod template."""
    (only,) = template["spec"]["containers"]
    return dict(only)


def environment(template: Mapping[str, Any]) -> dict[str, Any]:
    """Name of a variable → its value, or where it comes from."""
    pairs = container(template)["env"]
    assert len({pair["name"] for pair in pairs}) == len(pairs)
    return {pair["name"]: pair.get("value", pair.get("valueFrom")) for pair in pairs}


def serve_config(values: Mapping[str, Any]) -> dict[str, Any]:
    """The serve config of the ConfigMap."""
    data = of(values, "ConfigMap", "demo-tocsin-serve").body["data"]
    config: dict[str, Any] = yaml.safe_load(data["serve.yaml"])
    return config
