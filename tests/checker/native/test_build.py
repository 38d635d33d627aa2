"""The operators are built once, whole or not at all, and their absence is said."""

import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tocsin.checker import native
from tocsin.checker.native import build
from tocsin.core.errors import EnvironmentFault

COPIER = """#!/bin/sh
echo run >> "$LOG"
while [ "$1" != "-o" ]; do shift; done
printf library > "$2"
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder."""
    monkeypatch.setenv("TOCSIN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def pretend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    """A compiler of its own on the path; returns the log that it may write to."""
    tool = tmp_path / "bin" / "g++"
    tool.parent.mkdir()
    tool.write_text(script)
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.setenv("CXX", "")
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    return tmp_path / "log"


def test_a_build_is_kept_and_used_again(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proves that the compiler runs once, and that nothing but library and lock is left."""
    log = pretend(tmp_path, monkeypatch, COPIER)
    first, second = build.build(), build.build()
    assert first == second
    assert first.read_text() == "library"
    assert log.read_text() == "run\n"
    assert {path.suffix for path in first.parent.iterdir()} == {".so", ".lock"}


def test_of_several_that_start_together_one_builds(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proves the lock: it belongs to an open file, so threads meet at it as processes do."""
    log = pretend(tmp_path, monkeypatch, COPIER)
    start = threading.Barrier(4)

    def ask(_: int) -> str:
        start.wait()
        return build.build().read_text()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ask, range(4))) == ["library"] * 4
    assert log.read_text() == "run\n"


def test_a_failed_build_leaves_nothing_and_says_what_the_compiler_said(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proves that half a library is never found by the next process."""
    pretend(tmp_path, monkeypatch, "#!/bin/sh\necho 'x.cpp: error: no such header' >&2\nexit 1\n")
    with pytest.raises(EnvironmentFault, match="no such header"):
        build.build()
    assert not list(build.folder().glob("*.so"))
    assert not list(build.folder().glob(".operators*"))


def test_without_a_compiler_the_reason_names_what_is_missing(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proves that a machine without one goes on in Python, and that status and log can say why."""
    monkeypatch.setattr(native, "_reason", None)
    monkeypatch.setattr(native, "_loaded", lambda: False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "")
    assert not native.available()
    assert "g++" in native.reason()
    assert "Python" in native.reason()


def test_a_place_that_cannot_be_written_is_a_reason_too(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proves that a read-only image serves on the Python path instead of failing."""
    pretend(tmp_path, monkeypatch, COPIER)
    cache.write_text("a file where a folder is needed")
    with pytest.raises(EnvironmentFault, match="TOCSIN_CACHE"):
        build.build()


def test_the_switch_turns_the_operators_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves that a person can choose the Python path, and that the reason says so."""
    monkeypatch.setattr(native, "_reason", None)
    monkeypatch.setenv(native.SWITCH, "0")
    assert not native.available()
    assert native.SWITCH in native.reason()


def test_another_source_or_flag_is_another_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves that the key covers sources, flags and processor: no stale library is loaded."""
    keys = {build.key()}
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-g"))
    keys.add(build.key())
    monkeypatch.setattr(build, "_processor", lambda: "another processor")
    keys.add(build.key())
    monkeypatch.setattr(build, "sources", lambda: build.SOURCE.glob("rows.h"))
    keys.add(build.key())
    assert len(keys) == 4


def test_the_command_asks_for_what_this_machine_can_do() -> None:
    """Proves that the build uses the target's vectors and needs nothing but the compiler."""
    words = build.command("g++", Path("library.so"))
    assert "-march=native" in words
    assert words[0] == "g++"
    assert not any("ninja" in word for word in words)
