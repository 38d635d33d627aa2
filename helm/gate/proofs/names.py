"""Every object that another one names exists: in the render, by the operator, or by the values."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tocsin.helm.gate.manifest import Manifest
from tocsin.helm.gate.podviews import Container, PodView
from tocsin.helm.gate.proofs.pods import clusters, place, pods, value
from tocsin.helm.gate.render import Case
from tocsin.helm.gate.rule import Finding, Tree, items, sub

RULE = "contract.name"
_HOST = re.compile(
    r"(?<![\w.-])(?P<name>[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)"
    r"(?:\.(?P<namespace>[a-z0-9-]+)(?:\.svc(?:\.[a-z0-9.-]+)?)?)?:(?P<port>\d+)(?![\w.])"
)
_SERVICE = re.compile(r"(?<![\w.-])(?P<name>[a-z0-9][-a-z0-9]*-svc)\b")
_CONFIG_KINDS = ("ConfigMap", "RayService", "RayJob", "RayCronJob", "Job", "CronJob", "Pod")


def check_names(objects: Sequence[Manifest], case: Case) -> Iterator[Finding]:
    """Services, ConfigMaps, Secrets, claims, accounts, roles, volumes."""
    services = service_ports(objects)
    given = set(_words(case.values))
    yield from _whose(objects, case)
    for one in objects:
        if one.kind in _CONFIG_KINDS or pods([one]):
            yield from _hosts(one, services, case, given)
        yield from _role(one, objects)
    for pod in pods(objects):
        yield from _pod(pod, objects, given)


def _whose(objects: Sequence[Manifest], case: Case) -> Iterator[Finding]:
    """What others tell releases apart by: names, labels of pushed alerts, files of dashboards."""
    named = str(case.values.get("fullnameOverride") or case.release)
    for one in objects:
        if named not in one.name and not named.startswith(one.name.rpartition("-")[0]):
            yield Finding(RULE, one.where, f"the name {one.name}", f"one that holds {named}")
        labels = sub(one.metadata, "labels")
        if one.kind == "ConfigMap" and labels.get("app.kubernetes.io/component") == "monitoring":
            mark = hashlib.sha256(f"{case.namespace}/{case.release}".encode()).hexdigest()[:8]
            for file in sub(one.body, "data"):
                if not file.endswith(f"-{mark}.json"):
                    yield Finding(RULE, one.where, f"the file {file}", f"one that ends in {mark}")
    pushed = f"namespace={case.namespace},release={case.release}"
    for pod in pods(objects):
        for container in pod.containers():
            found = value(container, "TOCSIN_ALERT_LABELS")
            if found and found != pushed:
                where = f"{place(container)} env TOCSIN_ALERT_LABELS"
                yield Finding(RULE, where, found, pushed)


def service_ports(objects: Sequence[Manifest]) -> dict[str, set[int]]:
    """Name → ports of every Service there will be: the operator's and the chart's own."""
    found: dict[str, set[int]] = {}
    for one, spec in clusters(objects):
        head = sub(spec, "headGroupSpec", "template", "spec")
        first = next(iter(items(head, "containers")), {})
        declared = {int(port.get("containerPort") or 0) for port in items(first, "ports")}
        found[f"{one.name}-head-svc"] = declared
        annotated = sub(one.body, "metadata", "annotations").get("ray.io/enable-serve-service")
        if one.kind == "RayService" or annotated == "true":
            found[f"{one.name}-serve-svc"] = _serving(first)
    for one in objects:
        if one.kind == "Service":
            listed = items(one.body, "spec", "ports")
            found[one.name] = {int(port.get("port") or 0) for port in listed}
    return found


def _serving(first: Tree) -> set[int]:
    return {
        int(port.get("containerPort") or 0)
        for port in items(first, "ports")
        if str(port.get("name", "")).startswith("serve")
    }


def _hosts(
    one: Manifest, services: Mapping[str, set[int]], case: Case, given: set[str]
) -> Iterator[Finding]:
    for word in set(_words(one.body)):
        if "http" not in word and "ray:" not in word and "-svc" not in word:
            continue
        if word in given or len(word) > 4096:
            continue  # a person's own address, or a page of text
        for match in _SERVICE.finditer(word):
            if match["name"] not in services:
                known = f"a Service that there will be: {sorted(services)}"
                yield Finding(RULE, one.where, f"the host {match['name']}", known)
        for match in _HOST.finditer(word):
            name, port = match["name"], int(match["port"])
            if name in services and port not in services[name]:
                expected = f"one of its ports: {sorted(services[name])}"
                yield Finding(RULE, one.where, f"{name}:{port}", expected)
            if name in services and match["namespace"] not in (None, case.namespace):
                found = f"namespace {match['namespace']} for {name}"
                yield Finding(RULE, one.where, found, case.namespace)


def _pod(pod: PodView, objects: Sequence[Manifest], given: set[str]) -> Iterator[Finding]:
    account = pod.spec.get("serviceAccountName")
    if account and account not in given and not _has(objects, "ServiceAccount", account):
        yield Finding(RULE, pod.where, f"service account {account}", "one that is rendered")
    volumes = {str(volume.get("name")): volume for volume in items(pod.spec, "volumes")}
    mounted: set[str] = set()
    for container in pod.containers():
        for mount in items(container.body, "volumeMounts"):
            mounted.add(str(mount.get("name")))
            if mount.get("name") not in volumes:
                found = f"mount of {mount.get('name')!r}"
                yield Finding(RULE, place(container), found, f"a volume: {sorted(volumes)}")
        yield from _paths(container)
        yield from _sources(pod, container, objects, given)
    for name, volume in volumes.items():
        if name not in mounted:
            yield Finding(RULE, f"{pod.where} volume {name}", "not mounted", "a mount of it")
        yield from _volume(pod, volume, objects, given)


def _paths(container: Container) -> Iterator[Finding]:
    seen: set[str] = set()
    for mount in items(container.body, "volumeMounts"):
        path = str(mount.get("mountPath", ""))
        if not path.startswith("/") or path in seen:
            found = f"mountPath {path!r}"
            yield Finding(RULE, place(container), found, "an absolute path, each once")
        seen.add(path)


def _sources(
    pod: PodView, container: Container, objects: Sequence[Manifest], given: set[str]
) -> Iterator[Finding]:
    for entry in (*items(container.body, "env"), *items(container.body, "envFrom")):
        source = sub(entry, "valueFrom") or entry
        for kind, key in (("Secret", "secretKeyRef"), ("ConfigMap", "configMapKeyRef")):
            name = sub(source, key).get("name")
            if name and name not in given and not _has(objects, kind, name):
                yield Finding(RULE, place(container), f"{kind} {name}", "one that exists")
        for kind, key in (("Secret", "secretRef"), ("ConfigMap", "configMapRef")):
            name = sub(source, key).get("name")
            if name and name not in given and not _has(objects, kind, name):
                yield Finding(RULE, place(container), f"{kind} {name}", "one that exists")


def _volume(
    pod: PodView, volume: Tree, objects: Sequence[Manifest], given: set[str]
) -> Iterator[Finding]:
    where = f"{pod.where} volume {volume.get('name')}"
    config = sub(volume, "configMap")
    if config:
        found = [
            one for one in objects if one.kind == "ConfigMap" and one.name == config.get("name")
        ]
        if not found and config.get("name") not in given:
            yield Finding(RULE, where, f"ConfigMap {config.get('name')}", "one that is rendered")
        for item in items(config, "items"):
            if found and item.get("key") not in sub(found[0].body, "data"):
                yield Finding(RULE, where, f"key {item.get('key')}", "a key of the ConfigMap")
    for kind, key, field in (
        ("Secret", "secret", "secretName"),
        ("PersistentVolumeClaim", "persistentVolumeClaim", "claimName"),
    ):
        name = sub(volume, key).get(field)
        if sub(volume, key) and name not in given and not _has(objects, kind, name):
            yield Finding(RULE, where, f"{kind} {name}", "one that the values name")


def _role(one: Manifest, objects: Sequence[Manifest]) -> Iterator[Finding]:
    if one.kind not in ("RoleBinding", "ClusterRoleBinding"):
        return
    reference = sub(one.body, "roleRef")
    if not _has(objects, str(reference.get("kind")), reference.get("name")):
        yield Finding(RULE, one.where, f"role {reference.get('name')}", "one that is rendered")
    for subject in items(one.body, "subjects"):
        if not _has(objects, str(subject.get("kind")), subject.get("name")):
            yield Finding(RULE, one.where, f"subject {subject.get('name')}", "a rendered account")


def _has(objects: Sequence[Manifest], kind: str, name: Any) -> bool:
    return any(one.kind == kind and one.name == name for one in objects)


def _words(node: Any) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    elif isinstance(node, Mapping):
        for value in node.values():
            yield from _words(value)
    elif isinstance(node, list | tuple):
        for value in node:
            yield from _words(value)
