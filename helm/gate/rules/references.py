"""What names something else finds it: in the same render, or among what the user brings."""

from collections.abc import Iterable, Iterator

from tocsin.helm.gate.podviews import COMPONENT, PodView
from tocsin.helm.gate.rule import Complaint, Release, Tree, items, on_release, sub
from tocsin.helm.gate.rules.metadata import CHART_NAME
from tocsin.helm.gate.rules.network import names_part
from tocsin.helm.gate.rules.placement import selects

NAME = "app.kubernetes.io/name"
INSTANCE = "app.kubernetes.io/instance"
# What pods of a release can be; a selector that asks for another word finds nothing, ever.
COMPONENTS = ("head", "worker", "chaos", "test", "relay")
# Components whose ConfigMaps no pod mounts: people read the settings, a sidecar the dashboards.
READ_BY_OTHERS = ("service", "monitoring")
# Kinds that choose pods by label, and the field in which they do.
SELECTING = {
    "NetworkPolicy": "podSelector",
    "PodDisruptionBudget": "selector",
    "PodMonitor": "selector",
    "Service": "selector",
}


@on_release("references.config_maps")
def config_maps(release: Release) -> Iterator[Complaint]:
    """A ConfigMap that a pod uses is in the render, with the keys that are asked for."""
    known = {one.name: one.body for one in release.of_kind("ConfigMap")}
    for pod in release.pods:
        for path, name, keys in _config_map_uses(pod):
            if name not in known:
                yield Complaint(f"{pod.where} {path}", f"ConfigMap {name}", "one of this render")
                continue
            held = sub(known[name], "data").keys() | sub(known[name], "binaryData").keys()
            for key in sorted(keys - held):
                yield Complaint(f"{pod.where} {path}", f"key {key} of {name}", "a key it has")


def _config_map_uses(pod: PodView) -> Iterator[tuple[str, str, set[str]]]:
    for index, volume in enumerate(items(pod.spec, "volumes")):
        path = f"spec.volumes[{index}]"
        sources = [sub(volume, "configMap")] if "configMap" in volume else []
        sources += [
            sub(one, "configMap")
            for one in items(volume, "projected", "sources")
            if "configMap" in one
        ]
        for source in sources:
            if source.get("optional") is not True:
                keys = {str(one.get("key")) for one in items(source, "items")}
                yield path, str(source.get("name")), keys
    for container in pod.containers():
        for one in items(container.body, "env"):
            said = sub(one, "valueFrom", "configMapKeyRef")
            if said and said.get("optional") is not True:
                yield f"{container.path}.env", str(said.get("name")), {str(said.get("key"))}
        for one in items(container.body, "envFrom"):
            if "configMapRef" in one:
                yield f"{container.path}.envFrom", str(sub(one, "configMapRef").get("name")), set()


@on_release("references.sub_paths")
def sub_paths(release: Release) -> Iterator[Complaint]:
    """A file that is mounted alone out of a ConfigMap is in it."""
    known = {one.name: sub(one.body, "data") for one in release.of_kind("ConfigMap")}
    for pod in release.pods:
        volumes = {
            volume.get("name"): str(sub(volume, "configMap").get("name"))
            for volume in items(pod.spec, "volumes")
            if "configMap" in volume
        }
        for container in pod.containers():
            for mount in items(container.body, "volumeMounts"):
                held = known.get(volumes.get(mount.get("name"), ""), {})
                if mount.get("name") in volumes and mount.get("subPath", "") not in ("", *held):
                    path = f"{pod.where} {container.path}.volumeMounts"
                    yield Complaint(path, f"subPath {mount['subPath']}", "a key of the ConfigMap")


@on_release("references.accounts")
def accounts(release: Release) -> Iterator[Complaint]:
    """A pod's account is made by the render; each account that is made is some pod's."""
    known = {one.name for one in release.of_kind("ServiceAccount")}
    used = {str(pod.spec.get("serviceAccountName")) for pod in release.pods}
    for pod in release.pods:
        name = str(pod.spec.get("serviceAccountName"))
        if name not in known:
            yield Complaint(f"{pod.where} spec.serviceAccountName", name, "one of this render")
    for left in sorted(known - used):
        yield Complaint(f"ServiceAccount/{left}", "no pod's", "a pod that uses it")


@on_release("references.unused_config_maps")
def unused_config_maps(release: Release) -> Iterator[Complaint]:
    """A ConfigMap is mounted by a pod, or is a dashboard that a sidecar looks for."""
    used = {name for pod in release.pods for _, name, _ in _config_map_uses(pod)}
    for one in release.of_kind("ConfigMap"):
        component = sub(one.metadata, "labels").get("app.kubernetes.io/component")
        if one.name not in used and component not in READ_BY_OTHERS:
            yield Complaint(one.where, "no pod mounts it", "a use")


@on_release("references.selectors")
def selectors(release: Release) -> Iterator[Complaint]:
    """A policy, a budget, a monitor or a Service finds pods of this release, and of no other."""
    for one in release.of_kind(*SELECTING):
        selector = sub(one.body, "spec", SELECTING[one.kind])
        where = f"{one.where} spec.{SELECTING[one.kind]}"
        if one.kind == "Service":
            selector = {"matchLabels": selector}
        yield from _own(where, selector, release.name)
        if one.kind != "NetworkPolicy" and not names_part(selector):
            yield Complaint(where, "pods of every part", f"a {COMPONENT}")
        if not any(selects(selector, pod.final_labels) for pod in release.pods):
            yield Complaint(where, "no pod is selected", "labels of a pod of the render")


@on_release("references.peers")
def peers(release: Release) -> Iterator[Complaint]:
    """A policy's peers are parts of this release, or pods of a namespace that is named."""
    for one in release.of_kind("NetworkPolicy"):
        for side, key in (("ingress", "from"), ("egress", "to")):
            for rule in items(one.body, "spec", side):
                for peer in items(rule, key):
                    # With a namespace the pods are somebody else's, a DNS server's for example.
                    if "podSelector" in peer and "namespaceSelector" not in peer:
                        where = f"{one.where} spec.{side}.{key}"
                        yield from _own(where, sub(peer, "podSelector"), release.name)


def _own(where: str, selector: Tree, release: str) -> Iterator[Complaint]:
    labels = sub(selector, "matchLabels")
    for label, value in ((INSTANCE, release), (NAME, CHART_NAME)):
        if labels.get(label) != value:
            yield Complaint(f"{where}.matchLabels[{label}]", f"{labels.get(label)}", value)
    asked = [str(labels[COMPONENT])] if COMPONENT in labels else []
    for one in items(selector, "matchExpressions"):
        if one.get("key") == COMPONENT:
            asked += [str(value) for value in one.get("values") or ()]
    for component in asked:
        if component not in COMPONENTS:
            yield Complaint(where, f"component {component}", " or ".join(COMPONENTS))


@on_release("references.budgets")
def budgets(release: Release) -> Iterator[Complaint]:
    """No pod is under two budgets, as then none of its evictions can be decided."""
    for pod in release.pods:
        names = [
            one.name
            for one in release.of_kind("PodDisruptionBudget")
            if selects(sub(one.body, "spec", "selector"), pod.final_labels)
        ]
        if len(names) > 1:
            yield Complaint(pod.where, f"under {', '.join(names)}", "one budget at most")


@on_release("references.service_ports")
def service_ports(release: Release) -> Iterator[Complaint]:
    """A Service leads to a port that a pod behind it opens."""
    for one in release.of_kind("Service"):
        selector = {"matchLabels": sub(one.body, "spec", "selector")}
        opened = _opened(pod for pod in release.pods if selects(selector, pod.final_labels))
        for port in items(one.body, "spec", "ports"):
            target = port.get("targetPort", port.get("port"))
            if target not in opened:
                yield Complaint(f"{one.where} spec.ports", f"{target}", "a port of those pods")


def _opened(pods: Iterable[PodView]) -> set[object]:
    return {
        name
        for pod in pods
        for container in pod.containers()
        for port in items(container.body, "ports")
        for name in (port.get("name"), port.get("containerPort"))
    }


@on_release("references.policy_ports")
def policy_ports(release: Release) -> Iterator[Complaint]:
    """A port that a policy lets in is one that a pod behind it opens."""
    for one in release.of_kind("NetworkPolicy"):
        selector = sub(one.body, "spec", "podSelector")
        opened = _opened(pod for pod in release.pods if selects(selector, pod.final_labels))
        for rule in items(one.body, "spec", "ingress"):
            for port in items(rule, "ports"):
                if "endPort" not in port and port.get("port") not in opened:
                    path = f"{one.where} spec.ingress.ports"
                    yield Complaint(path, f"{port.get('port')}", "a port that those pods open")


@on_release("references.monitor_ports")
def monitor_ports(release: Release) -> Iterator[Complaint]:
    """A PodMonitor looks in its own namespace, for a port that every pod it selects has."""
    for one in release.of_kind("PodMonitor"):
        selector = sub(one.body, "spec", "selector")
        chosen = [pod for pod in release.pods if selects(selector, pod.final_labels)]
        places = sub(one.body, "spec", "namespaceSelector").get("matchNames")
        if places != [release.namespace]:
            path = f"{one.where} spec.namespaceSelector.matchNames"
            yield Complaint(path, f"{places}", f"[{release.namespace}]")
        for endpoint in items(one.body, "spec", "podMetricsEndpoints"):
            for pod in chosen:
                names = {
                    port.get("name")
                    for container in pod.containers()
                    for port in items(container.body, "ports")
                }
                if endpoint.get("port") not in names:
                    path = f"{one.where} spec.podMetricsEndpoints"
                    yield Complaint(path, f"{endpoint.get('port')}", f"a port of {pod.where}")


@on_release("references.cluster")
def cluster(release: Release) -> Iterator[Complaint]:
    """A RayJob that runs on a standing cluster names the one of this render."""
    known = {one.name for one in release.of_kind("RayCluster")}
    for one in release.of_kind("RayJob", "RayCronJob"):
        inner = ("spec",) if one.kind == "RayJob" else ("spec", "jobTemplate")
        selector = sub(one.body, *inner, "clusterSelector")
        name = selector.get("ray.io/cluster")
        if selector and name not in known:
            path = f"{one.where} {'.'.join(inner)}.clusterSelector"
            yield Complaint(path, f"{name}", "a RayCluster of this render")


@on_release("references.routes")
def routes(release: Release) -> Iterator[Complaint]:
    """Every route ends at a receiver that is declared; every receiver has a route."""
    for one in release.of_kind("AlertmanagerConfig"):
        spec = sub(one.body, "spec")
        known = {str(receiver.get("name")) for receiver in items(spec, "receivers")}
        used = set(_receivers(sub(spec, "route")))
        for name in sorted(used - known):
            yield Complaint(f"{one.where} spec.route", f"receiver {name}", "one of spec.receivers")
        for name in sorted(known - used):
            yield Complaint(f"{one.where} spec.receivers", f"{name} without a route", "a route")


def _receivers(route: Tree) -> Iterator[str]:
    if "receiver" in route:
        yield str(route["receiver"])
    for inner in items(route, "routes"):
        yield from _receivers(inner)
