"""What the project asks of its own pods beyond the public standard."""

import re
from collections.abc import Iterator

from tocsin.helm.gate import syntax
from tocsin.helm.gate.manifest import Manifest
from tocsin.helm.gate.podviews import Container, PodView
from tocsin.helm.gate.rule import (
    Complaint,
    Release,
    Tree,
    items,
    on_container,
    on_pod,
    on_release,
    sub,
)
from tocsin.helm.gate.rules.metadata import CHART_NAME

USER_ID = 10001
# Who may talk to the API: the head that scales, and whoever injects chaos.
TOKEN_COMPONENTS = ("head", "chaos")
POD_LABELS = (
    "app.kubernetes.io/name",
    "app.kubernetes.io/instance",
    "app.kubernetes.io/component",
    "tocsin.dev/chaos-target",
)
# Labels that change with a release of the chart: in a pod template they would roll every pod.
VERSIONED_LABELS = ("helm.sh/chart", "app.kubernetes.io/version", "app.kubernetes.io/managed-by")
_PATH = r"[a-z0-9]([-a-z0-9._]*[a-z0-9])?"
IMAGE = re.compile(
    rf"({_PATH}(:[0-9]+)?/)?{_PATH}(/{_PATH})*"
    r"(:(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?(@(?P<digest>sha256:[0-9a-f]{64}))?"
)
SECRET_NAME = re.compile(r"TOKEN|PASSWORD|SECRET|API_?KEY|CREDENTIAL", re.IGNORECASE)
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
# Where a pod keeps what it makes; whatever else is mounted is for reading.
WRITTEN_SOURCES = ("emptyDir", "ephemeral")
WRITTEN_CLAIM_PATHS = ("/var/lib/tocsin",)
SHARED_MEMORY = "/dev/shm"
DNS_PORT = 53
SHELLS = ("sh", "bash", "/bin/sh", "/bin/bash")


@on_container("house.read_only_root")
def read_only_root(container: Container) -> Iterator[Complaint]:
    """The image's files cannot be changed by what runs."""
    found = sub(container.body, "securityContext").get("readOnlyRootFilesystem")
    if found is not True:
        yield Complaint("securityContext.readOnlyRootFilesystem", f"{found}", "true")


@on_pod("house.user")
def user(pod: PodView) -> Iterator[Complaint]:
    """Pods run as the image's own user and group, whose files are theirs."""
    context = sub(pod.spec, "securityContext")
    for key in ("runAsUser", "runAsGroup", "fsGroup"):
        if context.get(key) != USER_ID:
            yield Complaint(f"spec.securityContext.{key}", f"{context.get(key)}", f"{USER_ID}")
    if context.get("fsGroupChangePolicy") != "OnRootMismatch":
        # The server's default walks through every file of a volume at every start.
        path, found = "spec.securityContext.fsGroupChangePolicy", context.get("fsGroupChangePolicy")
        yield Complaint(path, f"{found}", "OnRootMismatch")
    for container in pod.containers():
        own = sub(container.body, "securityContext")
        for key in ("runAsUser", "runAsGroup"):
            if own.get(key, USER_ID) != USER_ID:
                path = f"{container.path}.securityContext.{key}"
                yield Complaint(path, f"{own[key]}", f"{USER_ID}")


@on_container("house.memory")
def memory(container: Container) -> Iterator[Complaint]:
    """Memory is requested in full, so that no node takes it back; CPU is requested."""
    asked = sub(container.body, "resources", "requests")
    limit = sub(container.body, "resources", "limits").get("memory")
    if limit is None or syntax.quantity(asked.get("memory")) != syntax.quantity(limit):
        path = "resources.requests.memory"
        yield Complaint(path, f"{asked.get('memory')}", f"the limit, which is {limit}")
    if asked.get("cpu") is None:
        yield Complaint("resources.requests.cpu", "nothing", "a share of CPU")


@on_pod("house.probes")
def probes(pod: PodView) -> Iterator[Complaint]:
    """What runs for long says when it has started, is ready, is alive."""
    if not pod.is_long_running:
        return
    for container in pod.containers():
        if container.is_init or container.is_injected:
            continue
        for probe in PROBES:
            if not sub(container.body, probe):
                yield Complaint(f"{container.path}.{probe}", "nothing", "a probe")


@on_container("house.image")
def image(container: Container) -> Iterator[Complaint]:
    """An image is named by tag or digest, and the tag is not one that moves."""
    if container.is_injected and "image" not in container.body:
        return  # the operator takes the head's own
    found = str(container.body.get("image", ""))
    match = IMAGE.fullmatch(found)
    if match is None:
        yield Complaint("image", found or "nothing", "a reference such as registry/name:1.2.3")
    elif match["digest"] is None and match["tag"] in (None, "latest"):
        yield Complaint("image", found, "a digest, or a tag other than latest")


@on_container("house.pull_policy")
def pull_policy(container: Container) -> Iterator[Complaint]:
    """Whether a node pulls is said, not left to a default that depends on the tag."""
    if not container.is_injected and "imagePullPolicy" not in container.body:
        yield Complaint("imagePullPolicy", "nothing", "Always, IfNotPresent or Never")


@on_pod("house.token")
def token(pod: PodView) -> Iterator[Complaint]:
    """No pod is given a token for the API unless its component needs one; the choice is said."""
    found = pod.spec.get("automountServiceAccountToken")
    if found is None:
        yield Complaint("spec.automountServiceAccountToken", "nothing", "false, or true by need")
    elif found is True and pod.component not in TOKEN_COMPONENTS:
        path = "spec.automountServiceAccountToken"
        yield Complaint(path, f"true for {pod.component or 'a pod of no component'}", "false")


@on_pod("house.service_account")
def service_account(pod: PodView) -> Iterator[Complaint]:
    """A pod runs under an account of the release, never the namespace's default."""
    found = pod.spec.get("serviceAccountName")
    if found in (None, "", "default"):
        yield Complaint("spec.serviceAccountName", f"{found}", "an account of the release")


@on_pod("house.labels")
def labels(pod: PodView) -> Iterator[Complaint]:
    """Pods carry the labels that selectors ask for, and none that changes with the chart."""
    for key in POD_LABELS[:3]:
        if not pod.labels.get(key):
            yield Complaint(f"metadata.labels[{key}]", "nothing", "a value")
    if pod.labels.get(POD_LABELS[0], CHART_NAME) != CHART_NAME:
        yield Complaint(f"metadata.labels[{POD_LABELS[0]}]", "another name", CHART_NAME)
    if pod.group and pod.component != ("head" if pod.is_ray_head else "worker"):
        expected = "head" if pod.is_ray_head else "worker"
        yield Complaint(f"metadata.labels[{POD_LABELS[2]}]", pod.component, expected)
    for key in VERSIONED_LABELS:
        if key in pod.labels and pod.owner.kind != "Pod":
            yield Complaint(
                f"metadata.labels[{key}]", "a label that changes", "none: it rolls pods"
            )
    for key in pod.annotations:
        if key.startswith("checksum/"):
            yield Complaint(f"metadata.annotations[{key}]", "a checksum", "none: it rolls pods")


@on_container("house.secrets")
def secrets(container: Container) -> Iterator[Complaint]:
    """What is secret comes from a Secret, and is never written into an object."""
    for index, one in enumerate(items(container.body, "env")):
        if SECRET_NAME.search(str(one.get("name", ""))) and one.get("value"):
            yield Complaint(f"env[{index}]", f"{one['name']} in clear", "valueFrom.secretKeyRef")


@on_pod("house.scratch")
def scratch(pod: PodView) -> Iterator[Complaint]:
    """An emptyDir says how large it may grow, or it may fill its node."""
    for index, volume in enumerate(items(pod.spec, "volumes")):
        if "emptyDir" in volume and not sub(volume, "emptyDir").get("sizeLimit"):
            yield Complaint(f"spec.volumes[{index}].emptyDir.sizeLimit", "nothing", "a size")


@on_container("house.no_shell")
def no_shell(container: Container) -> Iterator[Complaint]:
    """Commands are lists of words; none is handed to a shell to be read once more."""
    for key in ("command", "args"):
        words = container.body.get(key)
        if isinstance(words, list) and any(word in SHELLS for word in words):
            yield Complaint(key, "a shell", "the program and its words")


@on_container("house.mounts")
def mounts(container: Container) -> Iterator[Complaint]:
    """Settings, secrets and weights are mounted for reading; /dev/shm is memory."""
    volumes = {volume.get("name"): volume for volume in items(container.pod.spec, "volumes")}
    for index, mount in enumerate(items(container.body, "volumeMounts")):
        volume, where = volumes.get(mount.get("name"), {}), str(mount.get("mountPath"))
        is_written = any(source in volume for source in WRITTEN_SOURCES) or (
            "persistentVolumeClaim" in volume and where.startswith(WRITTEN_CLAIM_PATHS)
        )
        if volume and not is_written and mount.get("readOnly") is not True:
            path = f"volumeMounts[{index}].readOnly"
            yield Complaint(path, f"{mount.get('readOnly')}", "true")
        if where == SHARED_MEMORY and sub(volume, "emptyDir").get("medium") != "Memory":
            yield Complaint(f"volumeMounts[{index}]", "/dev/shm on disk", "medium Memory")


@on_pod("house.claims")
def claims(pod: PodView) -> Iterator[Complaint]:
    """A claim that containers only read is attached for reading, so that nodes can share it."""
    mounts = [one for c in pod.containers() for one in items(c.body, "volumeMounts")]
    for index, volume in enumerate(items(pod.spec, "volumes")):
        found = sub(volume, "persistentVolumeClaim").get("readOnly")
        mine = [one for one in mounts if one.get("name") == volume.get("name")]
        is_read = bool(mine) and all(one.get("readOnly") is True for one in mine)
        if "persistentVolumeClaim" in volume and is_read is not (found is True):
            path = f"spec.volumes[{index}].persistentVolumeClaim.readOnly"
            yield Complaint(path, f"{found}", "true" if is_read else "nothing")


@on_pod("house.service_links")
def service_links(pod: PodView) -> Iterator[Complaint]:
    """A pod's environment is what its template says, not a list of its neighbours."""
    if pod.spec.get("enableServiceLinks") is not False:
        found = pod.spec.get("enableServiceLinks")
        yield Complaint("spec.enableServiceLinks", f"{found}", "false")


@on_release("house.one_image")
def one_image(release: Release) -> Iterator[Complaint]:
    """All pods of a release run one image, so that driver, service and relay are of one version."""
    said = [
        (f"{pod.where} {container.path}.image", str(container.body["image"]))
        for pod in release.pods
        for container in pod.containers()
        if "image" in container.body
    ]
    images = [image for _, image in said]
    for where, found in said:
        usual = max(sorted(set(images)), key=images.count)
        if found != usual:
            yield Complaint(where, found, usual)


@on_release("house.protocol")
def protocol(release: Release) -> Iterator[Complaint]:
    """All that is served here is served over TCP; only names are asked for over UDP."""
    for pod in release.pods:
        for container in pod.containers():
            for index, port in enumerate(items(container.body, "ports")):
                path = f"{pod.where} {container.path}.ports[{index}].protocol"
                yield from _over_tcp(path, port)
    for one in release.of_kind("Service"):
        for index, port in enumerate(items(one.body, "spec", "ports")):
            yield from _over_tcp(f"{one.where} spec.ports[{index}].protocol", port)
    for one in release.of_kind("NetworkPolicy"):
        for side, port in _let_through(one):
            if port.get("port") != DNS_PORT:
                yield from _over_tcp(f"{one.where} spec.{side}.ports", port)


def _let_through(policy: Manifest) -> Iterator[tuple[str, Tree]]:
    for side in ("ingress", "egress"):
        for rule in items(policy.body, "spec", side):
            yield from ((side, port) for port in items(rule, "ports"))


def _over_tcp(path: str, port: Tree) -> Iterator[Complaint]:
    if port.get("protocol", "TCP") != "TCP":
        number = port.get("containerPort", port.get("port"))
        yield Complaint(path, f"{port['protocol']} for {number}", "TCP")
