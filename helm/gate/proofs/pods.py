"""What the contracts ask of pods: command lines, variables, ports and final labels."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tocsin.helm.gate import podviews
from tocsin.helm.gate.manifest import Manifest
from tocsin.helm.gate.podviews import Container, PodView
from tocsin.helm.gate.rule import Tree, items, sub

PROBES = ("startupProbe", "readinessProbe", "livenessProbe")


def pods(objects: Sequence[Manifest]) -> Iterator[PodView]:
    """All pods of a render, wherever their templates are nested."""
    for one in objects:
        yield from podviews.pods(one)


def place(container: Container) -> str:
    """How a finding names a container."""
    return f"{container.pod.where} {container.name or container.path}"


def ray_group(pod: PodView) -> Tree | None:
    """The group that holds a pod in which KubeRay starts Ray: rayStartParams and groupName."""
    if "GroupSpec" not in pod.path:
        return None
    here: Any = pod.owner.body
    for part in pod.path.split(".")[:-1]:
        key, _, index = part.partition("[")
        here = here[key]
        if index:
            here = here[int(index.removesuffix("]"))]
    return here if isinstance(here, Mapping) else None


def labels_in_cluster(pod: PodView) -> dict[str, str]:
    """A pod's labels once the operator has made it; the chart's win over the operator's own."""
    group = ray_group(pod)
    if group is None:
        return dict(pod.labels)
    return {
        "ray.io/is-ray-node": "yes",
        "ray.io/node-type": "head" if pod.is_ray_head else "worker",
        "ray.io/group": str(group.get("groupName", "headgroup")),
        "app.kubernetes.io/name": "kuberay",
        "app.kubernetes.io/created-by": "kuberay-operator",
        **pod.labels,
    }


def words(container: Container) -> tuple[str, ...]:
    """Its command line; nothing where the image or the operator decides."""
    parts = [*(container.body.get("command") or ()), *(container.body.get("args") or ())]
    return tuple(map(str, parts))


def variables(container: Container) -> Sequence[Tree]:
    """Its environment, in order."""
    return items(container.body, "env")


def value(container: Container, name: str) -> str:
    """The plain value of a variable; empty where there is none."""
    found = (entry for entry in variables(container) if entry.get("name") == name)
    return next((str(entry.get("value", "")) for entry in found), "")


def ports(container: Container) -> dict[str, int]:
    """Name → number of its declared ports."""
    declared = items(container.body, "ports")
    return {
        str(port.get("name", port.get("containerPort"))): int(port.get("containerPort") or 0)
        for port in declared
    }


def probes(container: Container) -> dict[str, Tree]:
    """Its probes and the hooks of its life, by the name of the field."""
    found = {name: sub(container.body, name) for name in PROBES}
    for name in ("postStart", "preStop"):
        found[name] = sub(container.body, "lifecycle", name)
    return {name: probe for name, probe in found.items() if probe}


def entrypoints(objects: Sequence[Manifest]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Where and what of the command lines that Ray is given to run."""
    for one in objects:
        if one.kind in ("RayJob", "RayCronJob"):
            below = ("spec", "jobTemplate") if one.kind == "RayCronJob" else ("spec",)
            text = sub(one.body, *below).get("entrypoint", "")
            yield f"{one.where} entrypoint", tuple(shlex.split(str(text)))


def clusters(objects: Sequence[Manifest]) -> Iterator[tuple[Manifest, Tree]]:
    """Every Ray cluster that a render makes, with its spec."""
    for one in objects:
        if one.kind == "RayCluster":
            yield one, sub(one.body, "spec")
        elif one.kind == "RayService":
            yield one, sub(one.body, "spec", "rayClusterConfig")
        elif one.kind == "RayJob" and sub(one.body, "spec", "rayClusterSpec"):
            yield one, sub(one.body, "spec", "rayClusterSpec")
