"""Declared ports are those that the program opens; probes ask pages that it has."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tocsin.core.errors import SpecError
from tocsin.dashboards.relay.config import Listen
from tocsin.helm.gate.manifest import Manifest
from tocsin.helm.gate.podviews import Container, PodView
from tocsin.helm.gate.proofs.commands import parsed
from tocsin.helm.gate.proofs.configs import mapping_of
from tocsin.helm.gate.proofs.pods import (
    labels_in_cluster,
    place,
    pods,
    ports,
    probes,
    ray_group,
    value,
    variables,
    words,
)
from tocsin.helm.gate.proofs.selectors import matches
from tocsin.helm.gate.render import Case
from tocsin.helm.gate.rule import Finding, Tree, items, sub

RULE = "contract.port"
AGENT = 52365
"""Ray's agent on every node; the operator fixes it there."""
RELAY = "relay"
# Pages by the name of the port; Serve's proxy answers /-/ itself and passes the rest on.
_PAGES: Mapping[str, tuple[str, ...]] = {
    "serve": ("/-/healthz", "/-/routes", "/health", "/health/checker_status", "/v1/models"),
    "metrics": ("/healthz", "/metrics", "/sd"),
    "dashboard": ("/api/gcs_healthz", "/api/version", "/api/serve/applications/"),
    "agent": ("/api/local_raylet_healthz", "/api/healthz"),
    RELAY: ("/healthz",),
}
# Where Ray puts things unless rayStartParams say otherwise: port name → (flag, default).
_HEAD: Mapping[str, tuple[str, int]] = {
    "gcs-server": ("port", 6379),
    "gcs": ("port", 6379),
    "dashboard": ("dashboard-port", 8265),
    "client": ("ray-client-server-port", 10001),
}


def check_ports(objects: Sequence[Manifest], case: Case) -> Iterator[Finding]:
    """Container ports, probes, and the ports of policies towards these pods."""
    serve = _serve_port(objects)
    for pod in pods(objects):
        opened = opened_ports(pod, serve)
        for container in pod.containers():
            if container.is_injected:
                continue
            for name, number in ports(container).items():
                if opened.get(name) != number:
                    known = ", ".join(f"{key} {port}" for key, port in sorted(opened.items()))
                    where = f"{place(container)} port {name}"
                    yield Finding(RULE, where, f"{number}", f"one that it opens: {known}")
            yield from _probed(container, opened)
        if pod.is_ray_head or ray_group(pod) is not None:
            yield from _declared(pod, opened)
        yield from _let_through(pod, opened, objects)
    yield from _services(objects)


def opened_ports(pod: PodView, serve: int) -> dict[str, int]:
    """Name → number of what listens in a pod."""
    containers = [one for one in pod.containers() if not (one.is_init or one.is_injected)]
    opened: dict[str, int] = {}
    for container in containers:
        metrics = value(container, "TOCSIN_METRICS_PORT")
        named = [entry.get("name") for entry in variables(container)]
        if "TOCSIN_METRICS_HOST" in named and metrics.isdigit():
            opened["metrics"] = int(metrics)
        opened.update(_of_command(container))
    group = ray_group(pod)
    if group is None:
        return opened
    params = sub(group, "rayStartParams")
    opened["serve"] = serve
    opened["agent"] = AGENT
    if pod.is_ray_head:
        for name, (flag, default) in _HEAD.items():
            given = str(params.get(flag, default))
            opened[name] = int(given) if given.isdigit() else 0
    return opened


def _of_command(container: Container) -> dict[str, int]:
    """A relay listens where its command says, else where its file does unless told otherwise."""
    line = words(container)
    if "relay" not in line:
        return {}
    try:
        found = parsed(line[1:])
    except SpecError:
        return {}
    return {RELAY: int(found.get("port") or Listen().port)}


def _serve_port(objects: Sequence[Manifest]) -> int:
    for one in objects:
        text = ""
        if one.kind == "RayService":
            text = str(sub(one.body, "spec").get("serveConfigV2", ""))
        elif one.kind == "ConfigMap":
            text = str(sub(one.body, "data").get("serve.yaml", ""))
        if text:
            port: Any = sub(mapping_of(text), "http_options").get("port", 8000)
            return int(port) if isinstance(port, int) else 0
    return 8000


def _declared(pod: PodView, opened: Mapping[str, int]) -> Iterator[Finding]:
    """The head's Service has exactly the ports that its first container declares."""
    first = next(pod.containers(), None)
    found = ports(first) if first else {}
    needed = ("dashboard", "client", "serve", "metrics") if pod.is_ray_head else ("metrics",)
    for name in needed:
        if name not in found:
            expected = f"{opened.get(name, 0)} declared, or no Service and no scrape has it"
            yield Finding(RULE, f"{pod.where} port {name}", "not declared", expected)
    if pod.is_ray_head and 6379 not in found.values():
        yield Finding(RULE, f"{pod.where} port gcs", "not declared", "6379: workers join there")


def _probed(container: Container, opened: Mapping[str, int]) -> Iterator[Finding]:
    for name, probe in probes(container).items():
        where = f"{place(container)} {name}"
        if not any(sub(probe, kind) for kind in ("httpGet", "tcpSocket", "exec", "grpc")):
            yield Finding(RULE, where, "no way of asking", "httpGet, tcpSocket or exec")
        for kind in ("httpGet", "tcpSocket"):
            asked = sub(probe, kind)
            if not asked:
                continue
            meant = [key for key, number in opened.items() if asked.get("port") in (key, number)]
            if isinstance(asked.get("port"), str) and asked["port"] not in ports(container):
                meant = []
            if not meant:
                yield Finding(RULE, where, f"port {asked.get('port')!r}", "one that it opens")
            elif kind == "httpGet" and not any(
                asked.get("path") in _PAGES.get(k, ()) for k in meant
            ):
                known = sorted({page for key in meant for page in _PAGES.get(key, ())})
                yield Finding(RULE, where, f"page {asked.get('path')!r}", f"one of {known}")


def _let_through(
    pod: PodView, opened: Mapping[str, int], objects: Sequence[Manifest]
) -> Iterator[Finding]:
    """A policy that admits others to a port of a pod names one that somebody there listens on."""
    declared = {name: port for one in pod.containers() for name, port in ports(one).items()}
    listening = {*opened.values()}
    for policy in objects:
        if policy.kind != "NetworkPolicy":
            continue
        spec = sub(policy.body, "spec")
        if not matches(sub(spec, "podSelector"), labels_in_cluster(pod)):
            continue
        for rule in items(spec, "ingress"):
            asked = [port.get("port") for port in items(rule, "ports")]
            numbers = [declared.get(port, 0) if isinstance(port, str) else port for port in asked]
            for port, number in zip(asked, numbers, strict=True):
                if number not in listening:
                    expected = f"one of {sorted(listening)}, as {pod.component} listens there"
                    yield Finding(RULE, f"{policy.where} ingress", f"port {port!r}", expected)


def _services(objects: Sequence[Manifest]) -> Iterator[Finding]:
    """Services of our own lead to a port that a selected pod declares."""
    for one in objects:
        if one.kind != "Service":
            continue
        selector = sub(one.body, "spec", "selector")
        chosen = [pod for pod in pods(objects) if _selected(selector, pod)]
        for port in items(one.body, "spec", "ports"):
            target = port.get("targetPort", port.get("port"))
            known = [p for pod in chosen for c in pod.containers() for p in ports(c).items()]
            if not any(target in pair for pair in known):
                found = f"targetPort {target!r}"
                yield Finding(RULE, one.where, found, f"a port of the selected pods: {known}")


def _selected(selector: Tree, pod: PodView) -> bool:
    return bool(selector) and all(pod.labels.get(key) == word for key, word in selector.items())
