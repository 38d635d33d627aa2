"""The probes of the chart, asked of a Ray head that is started as the chart starts it."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
import pytest

from tests.helm.ray_values import container, head, ray_cluster

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]
RAY = [sys.executable, "-c", "import sys; from ray.scripts.scripts import main; sys.exit(main())"]
LIMIT_S = 200.0


def free_port() -> int:
    """One that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


class Head:
    """A head of this test's own; ended process by process, so that no other Ray is touched."""

    def __init__(self, folder: Path) -> None:
        self.agent = free_port()
        self.mark = str(folder)
        # Short: a socket's path has 107 letters at most.
        self.temporary = Path(f"/tmp/tp{os.getpid()}")
        clean = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
        self.environment = {**clean, "TOCSIN_MARK": self.mark, "RAY_AUTH_MODE": "disabled"}
        # What the chart says, on ports of this test's own and never beyond this machine.
        said = {
            **ray_cluster({})["headGroupSpec"]["rayStartParams"],
            "node-ip-address": "127.0.0.1",
            "port": str(free_port()),
            "dashboard-host": "127.0.0.1",
            "dashboard-port": str(free_port()),
            "dashboard-agent-listen-port": str(self.agent),
            "ray-client-server-port": str(free_port()),
            "temp-dir": str(self.temporary),
        }
        words = [f"--{name}={value}" for name, value in said.items()]
        started = subprocess.run(
            [*RAY, "start", "--head", *words],
            env=self.environment,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert started.returncode == 0, started.stdout + started.stderr

    def processes(self, name: str = "") -> list[psutil.Process]:
        """What was started for this head: it all carries the mark."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                marked = process.environ().get("TOCSIN_MARK") == self.mark
                if marked and name in " ".join(process.cmdline()[:1]):
                    found.append(process)
        return found

    def close(self) -> None:
        """End every process of it."""
        for process in self.processes():
            with suppress(psutil.Error):
                process.kill()
        subprocess.run(["rm", "-rf", str(self.temporary)], check=True)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    """The head, running."""
    ray = Head(tmp_path_factory.mktemp("head"))
    try:
        yield ray
    finally:
        ray.close()


def _status(url: str) -> int:
    try:
        return httpx.get(url, timeout=5.0).status_code
    except httpx.HTTPError:
        return 0


def _becomes(url: str, wanted: bool) -> bool:
    """Whether the address answers 200, or no longer does, within the limit."""
    until_s = time.monotonic() + LIMIT_S
    while time.monotonic() < until_s:
        if (_status(url) == 200) is wanted:
            return True
        time.sleep(0.5)
    return False


def test_a_healthy_head_passes_its_probes_and_one_without_gcs_does_not(up: Head) -> None:
    """Each probe asks the address that Ray answers on, and the answer follows the GCS."""
    ray = container(head({}))
    paths = {ray[name]["httpGet"]["path"] for name in ("startupProbe", "readinessProbe")}
    assert paths == {ray["livenessProbe"]["httpGet"]["path"]}
    url = f"http://127.0.0.1:{up.agent}{paths.pop()}"
    assert _becomes(url, wanted=True), url
    (gcs,) = up.processes("gcs_server")
    gcs.kill()
    assert _becomes(url, wanted=False), url
