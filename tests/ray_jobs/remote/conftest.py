"""A cluster that is a folder, with a kubectl on the PATH that reads it."""

import os
import stat
import sys
from pathlib import Path

import pytest

from tests.ray_jobs.remote.kube import FakeCluster


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    """Release demo in namespace prod of context demo, armed and open to chaos."""
    folder, tools = tmp_path / "kube", tmp_path / "bin"
    folder.mkdir()
    tools.mkdir()
    script = Path(__file__).with_name("fake_kubectl.py")
    kubectl = tools / "kubectl"
    kubectl.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "{script}" "$@"\n')
    kubectl.chmod(kubectl.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_KUBE", str(folder))
    return FakeCluster(folder)
