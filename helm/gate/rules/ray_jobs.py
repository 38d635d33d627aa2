"""What the KubeRay operator refuses in a RayJob or RayCronJob that the server has accepted.

Restated, as in the module `ray`, from the behaviour of KubeRay 1.7.
"""

from collections.abc import Iterator
from typing import Any

from tocsin.helm.gate import syntax
from tocsin.helm.gate.manifest import Manifest
from tocsin.helm.gate.rule import Complaint, Tree, items, on_object, sub
from tocsin.helm.gate.rules.ray import loaded

CLUSTER_KEY = "ray.io/cluster"
# Deleting less may not come after deleting more.
DELETION_ORDER = ("DeleteWorkers", "DeleteCluster", "DeleteSelf")


@on_object("ray_jobs.spec")
def spec(one: Manifest) -> Iterator[Complaint]:
    """A RayJob says where it runs, and asks for nothing that this place cannot give."""
    for path, said in _jobs(one):
        selector = sub(said, "clusterSelector")
        if not selector and "rayClusterSpec" not in said:
            yield Complaint(path, "no cluster", "rayClusterSpec or clusterSelector")
        if selector:
            yield from _selected(path, said, selector)
        ends = said.get("shutdownAfterJobFinishes") is True
        if said.get("suspend") is True and (selector or not ends):
            yield Complaint(f"{path}.suspend", "true", "a cluster of its own that shuts down")
        if not ends and said.get("ttlSecondsAfterFinished", 0) != 0:
            found = f"{said['ttlSecondsAfterFinished']}"
            yield Complaint(f"{path}.ttlSecondsAfterFinished", found, "shutdownAfterJobFinishes")
        for key in ("activeDeadlineSeconds", "preRunningDeadlineSeconds"):
            if said.get(key, 1) <= 0:
                yield Complaint(f"{path}.{key}", f"{said[key]}", "above 0")
        if said.get("backoffLimit", 0) < 0:
            yield Complaint(f"{path}.backoffLimit", f"{said['backoffLimit']}", "0 or more")
        yield from _submission(path, said)
        if "runtimeEnvYAML" in said and not isinstance(loaded(said["runtimeEnvYAML"]), dict):
            yield Complaint(f"{path}.runtimeEnvYAML", "no mapping", "YAML of one")
        yield from _deletion(path, said)


def _selected(path: str, spec: Tree, selector: Tree) -> Iterator[Complaint]:
    if not selector.get(CLUSTER_KEY):
        yield Complaint(f"{path}.clusterSelector", "no name", f"{CLUSTER_KEY}: a cluster")
    if spec.get("backoffLimit", 0) > 0:
        yield Complaint(f"{path}.backoffLimit", f"{spec['backoffLimit']}", "0 with a selector")
    if spec.get("submissionMode") == "SidecarMode":
        yield Complaint(f"{path}.submissionMode", "SidecarMode", "another with a selector")


def _submission(path: str, spec: Tree) -> Iterator[Complaint]:
    mode = spec.get("submissionMode", "K8sJobMode")
    if mode not in ("K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"):
        yield Complaint(f"{path}.submissionMode", f"{mode}", "a mode that the operator knows")
    if mode == "InteractiveMode" and spec.get("backoffLimit", 0) > 0:
        yield Complaint(f"{path}.backoffLimit", f"{spec['backoffLimit']}", "0 when interactive")
    if mode == "SidecarMode" and spec.keys() & {"submitterPodTemplate", "submitterConfig"}:
        yield Complaint(f"{path}.submitterPodTemplate", "beside SidecarMode", "none")
    if mode == "K8sJobMode" and "submitterPodTemplate" not in spec:
        # The operator's own template is not hardened, so a restricted namespace refuses it.
        yield Complaint(f"{path}.submitterPodTemplate", "nothing", "a hardened template")


def _deletion(path: str, spec: Tree) -> Iterator[Complaint]:
    where, found = f"{path}.deletionStrategy", sub(spec, "deletionStrategy")
    rules = items(found, "deletionRules")
    if rules and spec.get("shutdownAfterJobFinishes") is True:
        yield Complaint(where, "beside shutdownAfterJobFinishes", "one of them")
    waits: dict[Any, dict[str, int]] = {}
    for index, rule in enumerate(rules):
        condition, policy = sub(rule, "condition"), str(rule.get("policy"))
        if sub(spec, "clusterSelector") and policy in DELETION_ORDER[:2]:
            yield Complaint(f"{where}.deletionRules[{index}]", policy, "DeleteSelf or DeleteNone")
        key = (condition.get("jobStatus"), condition.get("jobDeploymentStatus"))
        known = waits.setdefault(key, {})
        if policy in known:
            yield Complaint(f"{where}.deletionRules[{index}]", f"{policy} again", "once a status")
        known[policy] = condition.get("ttlSeconds", 0)
    for known in waits.values():
        times = [known[policy] for policy in DELETION_ORDER if policy in known]
        if times != sorted(times):
            yield Complaint(where, f"{times} s", "workers before cluster before the job itself")


@on_object("ray_jobs.schedule")
def schedule(one: Manifest) -> Iterator[Complaint]:
    """A RayCronJob has a schedule without a zone in it."""
    if one.kind != "RayCronJob":
        return
    spec = sub(one.body, "spec")
    if not syntax.is_schedule(spec.get("schedule")):
        yield Complaint("spec.schedule", f"{spec.get('schedule')!r}", "a five-field schedule")
    if spec.get("timeZone") == "":
        yield Complaint("spec.timeZone", "''", "a zone, or no key")


def _jobs(one: Manifest) -> Iterator[tuple[str, Tree]]:
    if one.kind == "RayJob":
        yield "spec", sub(one.body, "spec")
    if one.kind == "RayCronJob":
        yield "spec.jobTemplate", sub(one.body, "spec", "jobTemplate")
