"""What a server checks in a container beyond its schema: names, ports, mounts, probes, amounts."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from tocsin.helm.gate import syntax
from tocsin.helm.gate.podviews import Container, PodView
from tocsin.helm.gate.rule import Complaint, Tree, items, on_container, on_pod, sub

PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
HANDLERS = ("httpGet", "tcpSocket", "exec", "grpc")
TIMINGS = (
    ("periodSeconds", 1),
    ("timeoutSeconds", 1),
    ("successThreshold", 1),
    ("failureThreshold", 1),
    ("initialDelaySeconds", 0),
)
ENV_SOURCES = ("configMapKeyRef", "secretKeyRef", "fieldRef", "resourceFieldRef", "fileKeyRef")
FIELDS = (
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
)
MAP_FIELDS = ("metadata.labels['", "metadata.annotations['")
PULL_POLICIES = ("Always", "IfNotPresent", "Never")
MESSAGE_POLICIES = ("File", "FallbackToLogsOnError")
# Ray's agent answers here in every Ray pod; it is Ray's own, and no container lists it.
AGENT_PORT = 52365
BUILT_IN_RESOURCES = ("cpu", "memory", "ephemeral-storage")


@on_pod("containers.names")
def names(pod: PodView) -> Iterator[Complaint]:
    """Containers have names of their own, each a DNS label."""
    if not items(pod.spec, "containers"):
        yield Complaint("spec.containers", "none", "at least one")
    counted = Counter(container.name for container in pod.containers())
    for name, count in counted.items():
        if count > 1:
            yield Complaint("spec.containers", f"{name} {count} times", "each name once")
        if not syntax.is_label(name):
            yield Complaint("spec.containers", f"name {name!r}", "a DNS label")


@on_container("containers.image")
def image(container: Container) -> Iterator[Complaint]:
    """A container names an image, without spaces around it."""
    found = container.body.get("image")
    if not container.is_injected and (not isinstance(found, str) or found.strip() != found):
        yield Complaint("image", f"{found!r}", "a reference")
    elif found == "":
        yield Complaint("image", "nothing", "a reference")
    for key, allowed in (
        ("imagePullPolicy", PULL_POLICIES),
        ("terminationMessagePolicy", MESSAGE_POLICIES),
    ):
        if key in container.body and container.body[key] not in allowed:
            yield Complaint(key, f"{container.body[key]}", " or ".join(allowed))


@on_container("containers.ports")
def ports(container: Container) -> Iterator[Complaint]:
    """Ports have numbers in range, and names that are valid and used once."""
    seen: set[Any] = set()
    for index, port in enumerate(items(container.body, "ports")):
        number, protocol = port.get("containerPort"), port.get("protocol", "TCP")
        if not syntax.is_port_number(number):
            yield Complaint(f"ports[{index}].containerPort", f"{number}", "1 to 65535")
        if protocol not in ("TCP", "UDP", "SCTP"):
            yield Complaint(f"ports[{index}].protocol", f"{protocol}", "TCP, UDP or SCTP")
        if "name" in port and not syntax.is_port_name(port["name"]):
            yield Complaint(f"ports[{index}].name", f"{port['name']}", "≤ 15 of a-z, 0-9, -")
        for key in ((number, protocol), port.get("name", index)):
            if key in seen:
                yield Complaint(f"ports[{index}]", f"{key} again", "each port and name once")
            seen.add(key)


@on_pod("containers.port_names")
def port_names(pod: PodView) -> Iterator[Complaint]:
    """A name of a port is used by one container of a pod only, or scrapers pick either."""
    counted = Counter(
        port.get("name")
        for container in pod.containers()
        for port in items(container.body, "ports")
        if port.get("name")
    )
    for name, count in counted.items():
        if count > 1:
            yield Complaint("spec.containers", f"port {name} {count} times", "once in a pod")


@on_container("containers.env")
def env(container: Container) -> Iterator[Complaint]:
    """Variables have valid names, come once, and say a value or one source."""
    seen: set[Any] = set()
    for index, one in enumerate(items(container.body, "env")):
        path, name = f"env[{index}]", one.get("name")
        if not syntax.is_env_name(name):
            yield Complaint(f"{path}.name", f"{name!r}", "the name of a variable")
        if name in seen:
            yield Complaint(path, f"{name} again", "each variable once")
        seen.add(name)
        source = sub(one, "valueFrom")
        if "valueFrom" in one and len(source) != 1:
            yield Complaint(f"{path}.valueFrom", f"{len(source)} sources", "exactly one")
        if "valueFrom" in one and one.get("value"):
            yield Complaint(path, "value and valueFrom", "one of them")
        yield from _env_source(path, source)
    for index, one in enumerate(items(container.body, "envFrom")):
        if len(one.keys() & {"configMapRef", "secretRef"}) != 1:
            yield Complaint(f"envFrom[{index}]", "not one source", "configMapRef or secretRef")


def _env_source(path: str, source: Tree) -> Iterator[Complaint]:
    field = sub(source, "fieldRef").get("fieldPath")
    if "fieldRef" in source and not (
        field in FIELDS or (isinstance(field, str) and field.startswith(MAP_FIELDS))
    ):
        yield Complaint(f"{path}.valueFrom.fieldRef.fieldPath", f"{field}", "a field pods offer")
    for key in ("configMapKeyRef", "secretKeyRef"):
        if key not in source:
            continue
        said = sub(source, key)
        if not syntax.is_subdomain(said.get("name")):
            yield Complaint(f"{path}.valueFrom.{key}.name", f"{said.get('name')!r}", "a name")
        if not syntax.is_config_key(said.get("key")):
            yield Complaint(f"{path}.valueFrom.{key}.key", f"{said.get('key')!r}", "a key")


@on_container("containers.mounts")
def mounts(container: Container) -> Iterator[Complaint]:
    """What is mounted is a volume of the pod, at an absolute path of its own."""
    volumes = {volume.get("name") for volume in items(container.pod.spec, "volumes")}
    seen: set[Any] = set()
    for index, mount in enumerate(items(container.body, "volumeMounts")):
        path, where = f"volumeMounts[{index}]", mount.get("mountPath")
        if mount.get("name") not in volumes:
            yield Complaint(f"{path}.name", f"{mount.get('name')}", "a volume of this pod")
        if not isinstance(where, str) or not where.startswith("/") or ":" in where:
            yield Complaint(f"{path}.mountPath", f"{where!r}", "an absolute path without ':'")
        if where in seen:
            yield Complaint(f"{path}.mountPath", f"{where} again", "each path once")
        seen.add(where)
        inner = mount.get("subPath", "")
        if not isinstance(inner, str) or inner.startswith("/") or ".." in inner.split("/"):
            yield Complaint(f"{path}.subPath", f"{inner!r}", "a path below the volume")


@on_container("containers.probes")
def probes(container: Container) -> Iterator[Complaint]:
    """A probe asks in one way, at a port that the container opens, in times that make sense."""
    for key in PROBES:
        probe = container.body.get(key)
        if probe is None:
            continue
        if container.is_init and container.body.get("restartPolicy") != "Always":
            yield Complaint(key, "a probe", "none: an init container ends")
        yield from _handler(container, key, sub(probe))
        for timing, least in TIMINGS:
            found = sub(probe).get(timing)
            if found is not None and not (_is_int(found) and found >= least):
                yield Complaint(f"{key}.{timing}", f"{found}", f"{least} or more")
        if key != "readinessProbe" and sub(probe).get("successThreshold", 1) != 1:
            yield Complaint(f"{key}.successThreshold", f"{sub(probe)['successThreshold']}", "1")
    for hook in ("postStart", "preStop"):
        if hook in sub(container.body, "lifecycle"):
            yield from _handler(
                container, f"lifecycle.{hook}", sub(container.body, "lifecycle", hook), "sleep"
            )


def _handler(container: Container, path: str, asked: Tree, *more: str) -> Iterator[Complaint]:
    given = [name for name in (*HANDLERS, *more) if name in asked]
    if len(given) != 1:
        yield Complaint(path, f"{len(given)} ways to ask", "exactly one")
    for name in ("httpGet", "tcpSocket", "grpc"):
        if name in given:
            yield from _port(container, f"{path}.{name}.port", sub(asked, name).get("port"))
    if "httpGet" in given:
        http = sub(asked, "httpGet")
        if not str(http.get("path", "/")).startswith("/"):
            yield Complaint(f"{path}.httpGet.path", f"{http['path']!r}", "a path from /")
        if http.get("scheme", "HTTP") not in ("HTTP", "HTTPS"):
            yield Complaint(f"{path}.httpGet.scheme", f"{http['scheme']}", "HTTP or HTTPS")
    if "exec" in given and not sub(asked, "exec").get("command"):
        yield Complaint(f"{path}.exec.command", "nothing", "a command")


def _port(container: Container, path: str, port: Any) -> Iterator[Complaint]:
    opened = items(container.body, "ports")
    known = {one.get("name") for one in opened} | {one.get("containerPort") for one in opened}
    if container.pod.owner.api_version.startswith("ray.io/"):
        known.add(AGENT_PORT)
    if port not in known:
        yield Complaint(path, f"{port}", "a port that the container lists")


@on_container("containers.resources")
def resources(container: Container) -> Iterator[Complaint]:
    """Amounts are quantities; no request is above its limit; devices are whole and requested."""
    asked = sub(container.body, "resources", "requests")
    limits = sub(container.body, "resources", "limits")
    for side, amounts in (("requests", asked), ("limits", limits)):
        for name, found in amounts.items():
            path, amount = f"resources.{side}[{name}]", syntax.quantity(found)
            if amount is None or amount < 0:
                yield Complaint(path, f"{found!r}", "a quantity")
                continue
            if not syntax.is_qualified_name(name) or (
                "/" not in name and name not in BUILT_IN_RESOURCES
            ):
                yield Complaint(path, f"resource {name}", "a known resource or domain/name")
            if name != "cpu" and amount != amount.to_integral_value():
                yield Complaint(path, f"{found}", "a whole number")
            other = syntax.quantity(limits.get(name)) if name in limits else None
            if side == "requests" and other is not None and amount > other:
                yield Complaint(path, f"{found}", f"at most the limit, {limits[name]}")
            if side == "requests" and "/" in name and amount != other:
                yield Complaint(path, f"{found}", "the same as its limit")


def _is_int(found: Any) -> bool:
    return isinstance(found, int) and not isinstance(found, bool)
