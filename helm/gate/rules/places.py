"""What would be valid elsewhere and is wrong here: where things lie, and what people are told."""

from collections.abc import Iterator, Mapping
from typing import Any

from tocsin.helm.gate.manifest import Manifest
from tocsin.helm.gate.podviews import COMPONENT, Container
from tocsin.helm.gate.rule import (
    Complaint,
    Release,
    items,
    on_container,
    on_object,
    on_release,
    sub,
)

# Who reads them: kubectl and selectors, helm, KubeRay, and the program itself.
KEYS: Mapping[str, tuple[str, ...]] = {
    "app.kubernetes.io": ("name", "instance", "component", "managed-by", "version"),
    "helm.sh": ("chart", "hook", "hook-weight", "hook-delete-policy", "resource-policy"),
    "ray.io": ("cluster", "group", "ft-enabled", "initializing-timeout", "enable-serve-service"),
    "tocsin.dev": ("chaos-target", "dry-run", "namespace-label", "run"),
}
# Only the program is told of what began and not of its end: its orders end by themselves.
UNRESOLVED = "degrade"
# Whether an end is told where nothing is said of it: Alertmanager's configuration, send_resolved.
RESOLVED: Mapping[str, bool] = {"webhookConfigs": True, "pagerdutyConfigs": True}
# Shorter than this no start and no silence is judged: a busy node is slow for so long, s.
PATIENCE_S = 60


@on_container("places.temporary")
def temporary(container: Container) -> Iterator[Complaint]:
    """Python and Ray write below /tmp, which a read-only root has only as a volume."""
    for index, mount in enumerate(items(container.body, "volumeMounts")):
        if mount.get("name") == "tmp" and mount.get("mountPath") != "/tmp":
            yield Complaint(f"volumeMounts[{index}].mountPath", f"{mount.get('mountPath')}", "/tmp")


@on_object("places.resolved")
def resolved(one: Manifest) -> Iterator[Complaint]:
    """People hear of the end of what they were told of; the program does not."""
    if one.kind != "AlertmanagerConfig":
        return
    for index, receiver in enumerate(items(sub(one.body, "spec"), "receivers")):
        for channel in receiver:
            for told in items(receiver, channel):
                found = told.get("sendResolved", RESOLVED.get(channel, False))
                expected = receiver.get("name") != UNRESOLVED
                if found is not expected:
                    path = f"spec.receivers[{index}].{channel}.sendResolved"
                    yield Complaint(path, f"{found}", f"{expected}")


@on_container("places.patience")
def patience(container: Container) -> Iterator[Complaint]:
    """No pod is killed for a start or a silence of a minute; the next one would be no quicker."""
    for key in ("startupProbe", "livenessProbe"):
        probe = sub(container.body, key)
        # What is left out is the API's default: every 10 s, three times.
        waits_s = probe.get("periodSeconds", 10) * probe.get("failureThreshold", 3)
        if probe and waits_s <= PATIENCE_S:
            yield Complaint(key, f"{waits_s} s", f"more than {PATIENCE_S} s")


@on_release("places.tests")
def tests(release: Release) -> Iterator[Complaint]:
    """Test pods run one after the other, and go when they are done or asked for again."""
    seen: set[object] = set()
    for one in release.of_kind("Pod"):
        said = sub(one.metadata, "annotations")
        if said.get("helm.sh/hook") != "test":
            continue
        when = set(str(said.get("helm.sh/hook-delete-policy", "before-hook-creation")).split(","))
        if when != {"before-hook-creation", "hook-succeeded"}:
            path = f"{one.where} metadata.annotations[helm.sh/hook-delete-policy]"
            yield Complaint(path, f"{sorted(when)}", "before-hook-creation,hook-succeeded")
        weight = said.get("helm.sh/hook-weight", "0")
        if weight in seen:
            path = f"{one.where} metadata.annotations[helm.sh/hook-weight]"
            yield Complaint(path, f"{weight} again", "a weight of its own")
        seen.add(weight)


@on_object("places.stuck")
def stuck(one: Manifest) -> Iterator[Complaint]:
    """A budget for workers keeps no pod that is broken: a drain would wait for it for ever."""
    is_workers = sub(one.metadata, "labels").get(COMPONENT) == "worker"
    found = sub(one.body, "spec").get("unhealthyPodEvictionPolicy")
    if one.kind == "PodDisruptionBudget" and is_workers and found != "AlwaysAllow":
        yield Complaint("spec.unhealthyPodEvictionPolicy", f"{found}", "AlwaysAllow")


@on_object("places.scraped")
def scraped(one: Manifest) -> Iterator[Complaint]:
    """Pods that have ended are not asked for metrics, and no pod says whose its metrics are."""
    if one.kind != "PodMonitor":
        return
    for index, endpoint in enumerate(items(sub(one.body, "spec"), "podMetricsEndpoints")):
        # Left out, both are right: the operator's defaults.
        for key, wrong in (("filterRunning", False), ("honorLabels", True)):
            if endpoint.get(key) is wrong:
                path = f"spec.podMetricsEndpoints[{index}].{key}"
                yield Complaint(path, f"{wrong}", f"{not wrong}")


@on_object("places.keys")
def keys(one: Manifest) -> Iterator[Complaint]:
    """Keys of labels and annotations in these domains are ones that somebody reads."""
    for path, key in _keys(one.body, ""):
        domain, _, name = key.partition("/")
        if name not in KEYS.get(domain, (name,)):
            yield Complaint(path, key, " or ".join(f"{domain}/{known}" for known in KEYS[domain]))


def _keys(tree: Any, path: str) -> Iterator[tuple[str, str]]:
    """What looks like a key with a domain: of a mapping, or asked for by a selector."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            if "/" in key:
                yield path, key
            if key == "key" and isinstance(value, str):
                yield f"{path}.key", value
            yield from _keys(value, f"{path}.{key}".removeprefix("."))
    elif isinstance(tree, list):
        for index, value in enumerate(tree):
            yield from _keys(value, f"{path}[{index}]")


@on_release("places.alerts")
def alerts(release: Release) -> Iterator[Complaint]:
    """An alert says whose it is: by these labels it is routed, and kept from other releases."""
    for one in release.of_kind("PrometheusRule"):
        for group in items(sub(one.body, "spec"), "groups"):
            for rule in items(group, "rules"):
                labels = sub(rule, "labels")
                said = (labels.get("release"), labels.get("namespace"))
                whose = (release.name, release.namespace)
                if "alert" in rule and "release" in labels and said != whose:
                    where = f"{one.where} {rule.get('alert')}"
                    yield Complaint(where, f"{said}", f"{release.name} in {release.namespace}")
