"""Every selector finds a pod of the release, and the port that it is scraped on exists there."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tocsin.helm.gate.manifest import Manifest
from tocsin.helm.gate.podviews import COMPONENT, PodView
from tocsin.helm.gate.proofs.pods import labels_in_cluster, pods, ports
from tocsin.helm.gate.render import Case
from tocsin.helm.gate.rule import Finding, Tree, items, sub

RULE = "contract.selector"
COMPONENTS = ("head", "worker", "chaos", "test", "relay")
OURS = ("app.kubernetes.io/instance", "app.kubernetes.io/name")


def check_selectors(objects: Sequence[Manifest], case: Case) -> Iterator[Finding]:
    """Monitors, policies, budgets and spread constraints."""
    found = list(pods(objects))
    labels = [labels_in_cluster(pod) for pod in found]
    for one in objects:
        selector = sub(one.body, "spec", "selector")
        if one.kind == "NetworkPolicy":
            yield from _policy(one, labels)
        elif one.kind in ("PodDisruptionBudget", "PodMonitor"):
            yield from _finds(one, "spec.selector", selector, labels)
        elif one.kind == "Service":
            yield from _finds(one, "spec.selector", {"matchLabels": selector}, labels)
        if one.kind == "PodMonitor":
            yield from _scraped(one, found)
    for pod, mine in zip(found, labels, strict=True):
        yield from _labelled(pod, mine, case)


def _labelled(pod: PodView, mine: Mapping[str, str], case: Case) -> Iterator[Finding]:
    for spread in items(pod.spec, "topologySpreadConstraints"):
        if not matches(sub(spread, "labelSelector"), mine):
            where = f"{pod.where} topologySpreadConstraints"
            yield Finding(RULE, where, "a selector that misses this pod", "its own labels")
    for label, expected in ((OURS[0], case.release), (OURS[1], "tocsin")):
        if mine.get(label) != expected:
            yield Finding(RULE, f"{pod.where} label {label}", f"{mine.get(label)}", expected)


def matches(selector: Tree, labels: Mapping[str, str]) -> bool:
    """Whether a label selector takes a pod; an empty one takes all."""
    for key, word in sub(selector, "matchLabels").items():
        if labels.get(key) != word:
            return False
    for entry in items(selector, "matchExpressions"):
        key, words = entry.get("key", ""), entry.get("values") or []
        holds = {
            "In": labels.get(key) in words,
            "NotIn": labels.get(key) not in words,
            "Exists": key in labels,
            "DoesNotExist": key not in labels,
        }
        if not holds.get(str(entry.get("operator")), False):
            return False
    return True


def _finds(
    one: Manifest, path: str, selector: Tree, labels: Sequence[Mapping[str, str]]
) -> Iterator[Finding]:
    if not any(matches(selector, candidate) for candidate in labels):
        yield Finding(RULE, f"{one.where} {path}", f"{dict(selector)}", "a pod of this release")
    if not _bound(selector):
        found = f"{dict(selector)}"
        yield Finding(RULE, f"{one.where} {path}", found, f"{OURS[0]}: other releases stay out")


def _bound(selector: Tree) -> bool:
    return bool(sub(selector, "matchLabels").get(OURS[0]))


def _policy(one: Manifest, labels: Sequence[Mapping[str, str]]) -> Iterator[Finding]:
    spec = sub(one.body, "spec")
    yield from _finds(one, "spec.podSelector", sub(spec, "podSelector"), labels)
    for side, peers in (("ingress", "from"), ("egress", "to")):
        for number, rule in enumerate(items(spec, side)):
            for peer in items(rule, peers):
                selector = sub(peer, "podSelector")
                path = f"spec.{side}[{number}].{peers}"
                if selector and "namespaceSelector" not in peer:
                    yield from _finds(one, path, selector, [*labels, *_possible(labels)])


def _possible(labels: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """Pods that other values, or a person's own run, would add: a policy may name them before."""
    return [{**labels[0], COMPONENT: name} for name in COMPONENTS] if labels else []


def _scraped(one: Manifest, found: Sequence[PodView]) -> Iterator[Finding]:
    selector = sub(one.body, "spec", "selector")
    for endpoint in items(one.body, "spec", "podMetricsEndpoints"):
        name: Any = endpoint.get("port")
        missed = [
            pod.where
            for pod in found
            if matches(selector, labels_in_cluster(pod))
            and pod.component in ("head", "worker")
            and not any(name in ports(container) for container in pod.containers())
        ]
        if missed:
            yield Finding(RULE, f"{one.where} port {name!r}", f"not in {missed}", "their port name")
        if endpoint.get("path", "/metrics") != "/metrics":
            found_path = f"path {endpoint.get('path')!r}"
            yield Finding(RULE, one.where, found_path, "/metrics, which is what is served")
