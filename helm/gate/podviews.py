"""Every pod that an object would make, taken out of whatever kind it is nested in."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tocsin.helm.gate.manifest import Manifest

Tree = Mapping[str, Any]
COMPONENT = "app.kubernetes.io/component"
# Where a pod template lies, by kind; a star stands for each entry of a list.
_RAY_GROUPS = (("headGroupSpec", "template"), ("workerGroupSpecs", "*", "template"))
_RAY_JOB = (
    *(("rayClusterSpec", *group) for group in _RAY_GROUPS),
    ("submitterPodTemplate",),
)
TEMPLATES: dict[str, tuple[tuple[str, ...], ...]] = {
    "Pod": ((),),
    "PodTemplate": (("template",),),
    "Deployment": (("spec", "template"),),
    "StatefulSet": (("spec", "template"),),
    "DaemonSet": (("spec", "template"),),
    "ReplicaSet": (("spec", "template"),),
    "ReplicationController": (("spec", "template"),),
    "Job": (("spec", "template"),),
    "CronJob": (("spec", "jobTemplate", "spec", "template"),),
    "RayCluster": tuple(("spec", *group) for group in _RAY_GROUPS),
    "RayService": tuple(("spec", "rayClusterConfig", *group) for group in _RAY_GROUPS),
    "RayJob": tuple(("spec", *path) for path in _RAY_JOB),
    "RayCronJob": tuple(("spec", "jobTemplate", *path) for path in _RAY_JOB),
}
LONG_RUNNING = ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "RayCluster", "RayService")
# Fields of autoscalerOptions that the operator copies into the container that it adds to the head.
AUTOSCALER_FIELDS = ("env", "envFrom", "resources", "securityContext", "volumeMounts", "image")


@dataclass(frozen=True, slots=True, eq=False)
class Container:
    """One container of a pod; also one that the operator adds."""

    path: str
    """Where it lies in the pod: `spec.containers[0]`."""
    body: Tree
    pod: "PodView"
    is_init: bool = False
    is_injected: bool = False
    """Added by the operator, so that only part of it can be said in the object."""

    @property
    def name(self) -> str:
        """Its name, or nothing."""
        return str(self.body.get("name", ""))


@dataclass(frozen=True, slots=True, eq=False)
class PodView:
    """One pod template with the object that holds it."""

    owner: Manifest
    path: str
    """Where the template lies in the object; empty for a Pod."""
    template: Tree
    injected: tuple[Tree, ...] = ()

    @property
    def where(self) -> str:
        """How a finding names it."""
        return f"{self.owner.where} {self.path}".strip()

    @property
    def spec(self) -> Tree:
        """The pod's spec; empty when there is none."""
        return _mapping(self.template.get("spec"))

    @property
    def labels(self) -> Tree:
        """The pod's labels."""
        return _mapping(_mapping(self.template.get("metadata")).get("labels"))

    @property
    def annotations(self) -> Tree:
        """The pod's annotations."""
        return _mapping(_mapping(self.template.get("metadata")).get("annotations"))

    @property
    def component(self) -> str:
        """Which part of the release it is: head, worker, chaos, test."""
        return str(self.labels.get(COMPONENT, ""))

    @property
    def is_long_running(self) -> bool:
        """Whether it is meant to run until it is taken away."""
        return self.owner.kind in LONG_RUNNING

    @property
    def is_ray_head(self) -> bool:
        """Whether it is the template of a Ray head."""
        return "headGroupSpec" in self.path

    @property
    def group(self) -> Tree:
        """The Ray group that the template belongs to; empty for other pods."""
        if self.owner.api_version.partition("/")[0] != "ray.io" or "Group" not in self.path:
            return {}
        tree: Any = self.owner.body
        for key in self.path.replace("[", ".").replace("]", "").split(".")[:-1]:
            tree = tree[int(key)] if isinstance(tree, list) else tree[key]
        return _mapping(tree)

    @property
    def final_labels(self) -> Tree:
        """The pod's labels with those that the operator adds: which cluster, group and sort."""
        if not self.group:
            return self.labels
        kind = "head" if self.is_ray_head else "worker"
        added = {
            "ray.io/is-ray-node": "yes",
            "ray.io/node-type": kind,
            "ray.io/group": self.group.get("groupName", "headgroup"),
        }
        if self.owner.kind == "RayCluster":
            added["ray.io/cluster"] = self.owner.name
        return {**self.labels, **added}

    def containers(self) -> Iterator[Container]:
        """Containers of every sort: init, main, ephemeral, and those the operator adds."""
        for key in ("initContainers", "containers", "ephemeralContainers"):
            listed = self.spec.get(key)
            for index, body in enumerate(listed if isinstance(listed, list) else ()):
                path = f"spec.{key}[{index}]"
                yield Container(path, _mapping(body), self, is_init=key == "initContainers")
        for body in self.injected:
            yield Container("(autoscalerOptions)", body, self, is_injected=True)


@lru_cache(maxsize=16384)
def pods(owner: Manifest) -> tuple[PodView, ...]:
    """All pod templates of an object."""
    return tuple(
        PodView(owner, ".".join(path), template, _injected(owner.body, path))
        for pattern in TEMPLATES.get(owner.kind, ())
        for path, template in _find(owner.body, pattern, ())
    )


def _find(
    tree: Any, pattern: tuple[str, ...], done: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Tree]]:
    if not pattern:
        if isinstance(tree, Mapping):
            yield done, tree
    elif pattern[0] == "*":
        for index, entry in enumerate(tree if isinstance(tree, list) else ()):
            yield from _find(entry, pattern[1:], (*done[:-1], f"{done[-1]}[{index}]"))
    elif isinstance(tree, Mapping) and pattern[0] in tree:
        yield from _find(tree[pattern[0]], pattern[1:], (*done, pattern[0]))


def _injected(body: Tree, path: tuple[str, ...]) -> tuple[Tree, ...]:
    """The autoscaler that the operator puts beside Ray in a head pod."""
    if path[-2:] != ("headGroupSpec", "template"):
        return ()
    cluster: Tree = body
    for key in path[:-2]:
        cluster = _mapping(cluster.get(key))
    if cluster.get("enableInTreeAutoscaling") is not True:
        return ()
    options = _mapping(cluster.get("autoscalerOptions"))
    said = {key: options[key] for key in AUTOSCALER_FIELDS if key in options}
    return ({"name": "autoscaler", **said},)


def _mapping(found: Any) -> Tree:
    return found if isinstance(found, Mapping) else {}
