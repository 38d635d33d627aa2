"""Paths that the chart relies on are made by the Dockerfile, or mounted."""

import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from tocsin.helm.gate.manifest import Manifest
from tocsin.helm.gate.podviews import Container
from tocsin.helm.gate.proofs.pods import entrypoints, place, pods, probes, variables, words
from tocsin.helm.gate.render import Case
from tocsin.helm.gate.rule import Finding, items, sub

RULE = "contract.path"
DOCKERFILE = Path(__file__).resolve().parents[3] / "Dockerfile"
IMAGE = "/opt/tocsin/"
_PATH = re.compile(r"(?<![\w:/.-])/(?:[\w.-]+/)*[\w.-]+")
# Where any program keeps what it makes for a moment, and shares memory with others.
_GIVEN = ("/tmp", "/dev/shm")
# Of the system: there in every image, or given by the kubelet.
_SYSTEM = ("/proc", "/sys", "/dev/null", "/etc/ssl", "/etc/passwd", "/var/run/secrets")


def check_image_paths(objects: Sequence[Manifest], case: Case) -> Iterator[Finding]:
    """Every absolute path in a command, a variable or a probe lies on a mount or in the image.

    The other way round, a mount is where somebody looks, and folders that the image names are those
    that the chart names.
    """
    looked_at = _looked_at(objects)
    for pod in pods(objects):
        for container in pod.containers():
            if container.is_injected:
                continue
            mounts = [
                str(mount.get("mountPath", "/?")) for mount in items(container.body, "volumeMounts")
            ]
            # A cluster that is suspended is told later what to serve.
            waits = bool(pod.group) and sub(pod.owner.body, "spec").get("suspend") is True
            for mount in () if waits else mounts:
                if not any(path == mount or path.startswith(f"{mount}/") for path in looked_at):
                    expected = "a path that the system, a command, a variable or a file names"
                    yield Finding(RULE, place(container), f"a mount at {mount}", expected)
            for entry in variables(container):
                name, said = str(entry.get("name")), str(entry.get("value"))
                if said != image_variables().get(name, said):
                    where = f"{place(container)} env {name}"
                    yield Finding(RULE, where, said, f"{image_variables()[name]}, as the image has")
            for path in sorted(_paths(container)):
                if not _is_there(path, mounts):
                    expected = f"below a mount {mounts} or made by the Dockerfile"
                    yield Finding(RULE, place(container), path, expected)


def _looked_at(objects: Sequence[Manifest]) -> set[str]:
    """Paths that commands, variables and the served application's settings name, and the system's.

    A path that is mounted in one pod may be meant by another one: the policy is one for all.
    """
    found = {*_GIVEN}
    for pod in pods(objects):
        for container in pod.containers():
            found |= _paths(container)
    for _, line in entrypoints(objects):
        found.update(path for word in line for path in _PATH.findall(word) if "://" not in word)
    for one in objects:
        served = sub(one.body, "data").get("serve.yaml") if one.kind == "ConfigMap" else None
        found.update(_PATH.findall(str(served or "")))
    return found


def _paths(container: Container) -> set[str]:
    texts = [*words(container)]
    texts += [str(entry.get("value", "")) for entry in variables(container)]
    for probe in probes(container).values():
        texts += map(str, sub(probe, "exec").get("command") or ())
    found: set[str] = set()
    for text in texts:
        if "://" not in text and len(text) < 4096:
            found.update(_PATH.findall(text))
    return found


def _is_there(path: str, mounts: Sequence[str]) -> bool:
    if any(path == mount or path.startswith(f"{mount}/") for mount in mounts):
        return True
    if path.startswith(_SYSTEM):
        return True
    return path.startswith(IMAGE) and path in image_paths()


@cache
def image_paths(dockerfile: Path = DOCKERFILE) -> frozenset[str]:
    """Paths below /opt/tocsin that the Dockerfile names, and the folders above them."""
    text = dockerfile.read_text(encoding="utf-8") if dockerfile.is_file() else ""
    found: set[str] = set()
    for path in re.findall(r"/opt/tocsin(?:/[\w.-]+)*", text):
        while path.startswith("/opt/tocsin"):
            found.add(path)
            path = path.rpartition("/")[0]
    return frozenset(found)


@cache
def image_variables(dockerfile: Path = DOCKERFILE) -> dict[str, str]:
    """Folders of the program that the image sets, as the last of the Dockerfile's ENV lines do."""
    text = dockerfile.read_text(encoding="utf-8") if dockerfile.is_file() else ""
    return dict(re.findall(r"^(?:ENV)?[ \t]+(TOCSIN_\w+)=(/\S+)[ \t]*\\?$", text, re.MULTILINE))
