"""The Pod Security Standard "restricted", whole: what a hardened namespace admits.

Source: the public page "Pod Security Standards" of the Kubernetes documentation (1.37); restricted
includes baseline. Every pod counts, those nested in custom resources above all: no server looks
at those until the operator makes the pod, and then there is none.
"""

from collections.abc import Iterator
from typing import Any

from tocsin.helm.gate.podviews import Container, PodView
from tocsin.helm.gate.rule import Complaint, Tree, items, on_container, on_pod, sub

VOLUME_SOURCES = (
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
)
SECCOMP = ("RuntimeDefault", "Localhost")
APP_ARMOR = ("RuntimeDefault", "Localhost")
APP_ARMOR_ANNOTATION = "container.apparmor.security.beta.kubernetes.io/"
SELINUX_TYPES = ("", "container_t", "container_init_t", "container_kvm_t", "container_engine_t")
SYSCTLS = (
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
)
CAPABILITY_ALLOWED = "NET_BIND_SERVICE"
PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
HANDLERS = ("httpGet", "tcpSocket")


@on_pod("restricted.host_namespaces")
def host_namespaces(pod: PodView) -> Iterator[Complaint]:
    """A pod shares no network, process or IPC namespace with its node."""
    for key in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.spec.get(key):
            yield Complaint(f"spec.{key}", f"{pod.spec[key]}", "false or absent")


@on_pod("restricted.volumes")
def volumes(pod: PodView) -> Iterator[Complaint]:
    """A volume comes from a source that cannot reach into the node."""
    for index, volume in enumerate(items(pod.spec, "volumes")):
        for source in volume:
            if source != "name" and source not in VOLUME_SOURCES:
                path = f"spec.volumes[{index}].{source}"
                yield Complaint(
                    path, "a volume of this sort", f"one of {', '.join(VOLUME_SOURCES)}"
                )


@on_pod("restricted.sysctls")
def sysctls(pod: PodView) -> Iterator[Complaint]:
    """A pod sets only those kernel parameters that count as safe."""
    for one in items(pod.spec, "securityContext", "sysctls"):
        if one.get("name") not in SYSCTLS:
            yield Complaint("spec.securityContext.sysctls", f"{one.get('name')}", "a safe sysctl")


@on_pod("restricted.app_armor")
def app_armor(pod: PodView) -> Iterator[Complaint]:
    """AppArmor is not switched off, neither by field nor by annotation."""
    for path, context in _contexts(pod):
        kind = sub(context, "appArmorProfile").get("type")
        if kind is not None and kind not in APP_ARMOR:
            yield Complaint(f"{path}.appArmorProfile.type", f"{kind}", " or ".join(APP_ARMOR))
    for key, value in pod.annotations.items():
        if key.startswith(APP_ARMOR_ANNOTATION) and not (
            value == "runtime/default" or str(value).startswith("localhost/")
        ):
            yield Complaint(f"metadata.annotations[{key}]", f"{value}", "runtime/default")


@on_pod("restricted.selinux")
def selinux(pod: PodView) -> Iterator[Complaint]:
    """SELinux keeps a container type; user and role are not chosen."""
    for path, context in _contexts(pod):
        options = sub(context, "seLinuxOptions")
        if options.get("type", "") not in SELINUX_TYPES:
            yield Complaint(f"{path}.seLinuxOptions.type", f"{options['type']}", "a container type")
        for key in ("user", "role"):
            if options.get(key):
                yield Complaint(f"{path}.seLinuxOptions.{key}", f"{options[key]}", "nothing")


@on_pod("restricted.windows_host_process")
def windows_host_process(pod: PodView) -> Iterator[Complaint]:
    """No container runs as a process of its host."""
    for path, context in _contexts(pod):
        if sub(context, "windowsOptions").get("hostProcess"):
            yield Complaint(f"{path}.windowsOptions.hostProcess", "true", "false or absent")


@on_pod("restricted.pod_user")
def pod_user(pod: PodView) -> Iterator[Complaint]:
    """A pod does not name root as its user."""
    context = sub(pod.spec, "securityContext")
    if _is_root(context.get("runAsUser")):
        yield Complaint("spec.securityContext.runAsUser", "0", "a user other than root")
    if context.get("runAsNonRoot") is False:
        yield Complaint("spec.securityContext.runAsNonRoot", "false", "true")


@on_pod("restricted.pod_seccomp")
def pod_seccomp(pod: PodView) -> Iterator[Complaint]:
    """A pod does not switch seccomp off."""
    kind = sub(pod.spec, "securityContext", "seccompProfile").get("type")
    if kind is not None and kind not in SECCOMP:
        path = "spec.securityContext.seccompProfile.type"
        yield Complaint(path, f"{kind}", " or ".join(SECCOMP))


@on_container("restricted.privileged")
def privileged(container: Container) -> Iterator[Complaint]:
    """No container is privileged."""
    if _context(container).get("privileged"):
        yield Complaint("securityContext.privileged", "true", "false or absent")


@on_container("restricted.escalation")
def escalation(container: Container) -> Iterator[Complaint]:
    """A process cannot gain more privileges than its parent."""
    found = _context(container).get("allowPrivilegeEscalation")
    if found is not False:
        yield Complaint("securityContext.allowPrivilegeEscalation", _said(found), "false")


@on_container("restricted.capabilities")
def capabilities(container: Container) -> Iterator[Complaint]:
    """All capabilities are dropped; at most the one for low ports is added."""
    said = sub(_context(container), "capabilities")
    if "ALL" not in (said.get("drop") or ()):
        yield Complaint("securityContext.capabilities.drop", _said(said.get("drop")), "[ALL]")
    for name in said.get("add") or ():
        if name != CAPABILITY_ALLOWED:
            yield Complaint("securityContext.capabilities.add", f"{name}", CAPABILITY_ALLOWED)


@on_container("restricted.non_root")
def non_root(container: Container) -> Iterator[Complaint]:
    """A container must not be root: it says so, or its pod does."""
    own, pods = _context(container), sub(container.pod.spec, "securityContext")
    found = own.get("runAsNonRoot", pods.get("runAsNonRoot"))
    if found is not True:
        yield Complaint("securityContext.runAsNonRoot", _said(found), "true, here or in the pod")
    if _is_root(own.get("runAsUser")):
        yield Complaint("securityContext.runAsUser", "0", "a user other than root")


@on_container("restricted.seccomp")
def seccomp(container: Container) -> Iterator[Complaint]:
    """A container filters system calls: it says so, or its pod does."""
    own = sub(_context(container), "seccompProfile").get("type")
    pods = sub(container.pod.spec, "securityContext", "seccompProfile").get("type")
    found = own if own is not None else pods
    if found not in SECCOMP:
        yield Complaint("securityContext.seccompProfile.type", _said(found), " or ".join(SECCOMP))


@on_container("restricted.host_ports")
def host_ports(container: Container) -> Iterator[Complaint]:
    """No container takes a port of its node."""
    for index, port in enumerate(items(container.body, "ports")):
        if port.get("hostPort"):
            yield Complaint(f"ports[{index}].hostPort", f"{port['hostPort']}", "absent")


@on_container("restricted.proc_mount")
def proc_mount(container: Container) -> Iterator[Complaint]:
    """/proc is masked as usual."""
    found = _context(container).get("procMount", "Default")
    if found != "Default":
        yield Complaint("securityContext.procMount", f"{found}", "Default or absent")


@on_container("restricted.probe_hosts")
def probe_hosts(container: Container) -> Iterator[Complaint]:
    """Probes and lifecycle hooks ask the pod itself, no host that is named (since 1.34)."""
    places = [(probe, sub(container.body, probe)) for probe in PROBES]
    places += [
        (f"lifecycle.{hook}", sub(container.body, "lifecycle", hook))
        for hook in ("postStart", "preStop")
    ]
    for path, asked in places:
        for handler in HANDLERS:
            host = sub(asked, handler).get("host")
            if host:
                yield Complaint(f"{path}.{handler}.host", f"{host}", "absent")


def _contexts(pod: PodView) -> Iterator[tuple[str, Tree]]:
    yield "spec.securityContext", sub(pod.spec, "securityContext")
    for container in pod.containers():
        yield f"{container.path}.securityContext", _context(container)


def _context(container: Container) -> Tree:
    return sub(container.body, "securityContext")


def _is_root(user: Any) -> bool:
    return isinstance(user, int) and user == 0


def _said(found: Any) -> str:
    return "nothing" if found is None else f"{found}"
