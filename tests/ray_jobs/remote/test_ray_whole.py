"""The whole way on this machine: a Ray head with its dashboard, a job, an archive, a report."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.checkout import ROOT
from tocsin.ray_jobs.cluster import free_port

pytestmark = [
    pytest.mark.ray,
    pytest.mark.model,
    pytest.mark.release,
    pytest.mark.timeout(1000),
]
LIMIT_S = 800.0
"""A minute where there are two free cores."""

TOCSIN = [sys.executable, "-c", "from tocsin.ray_jobs.cli import main; main()"]


class Head:
    """A Ray head of this test's own; ended process by process, so that no other Ray is touched."""

    def __init__(self, folder: Path) -> None:
        tools = folder / "bin"
        tools.mkdir()
        program = tools / "tocsin"
        program.write_text(f"#!{sys.executable}\nfrom tocsin.ray_jobs.cli import main\nmain()\n")
        program.chmod(0o755)
        clean = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
        self.environment = {
            **clean,
            "PATH": f"{tools}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{clean['PATH']}",
            "PYTHONPATH": str(ROOT),
            "RAY_AUTH_MODE": "disabled",
            "TOCSIN_STORE": str(folder / "far"),
            "TOCSIN_MARK": str(folder),
        }
        self.folder = folder
        self.port = free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        # Short: a socket's path has 107 letters at most.
        self.temporary = Path(f"/tmp/th{os.getpid()}")
        words = [
            *("--node-ip-address=127.0.0.1", f"--port={free_port()}", "--num-cpus=4"),
            *("--dashboard-host=127.0.0.1", f"--dashboard-port={self.port}"),
            *(
                f"--dashboard-agent-listen-port={free_port()}",
                f"--ray-client-server-port={free_port()}",
            ),
            *("--object-store-memory=200000000", f"--temp-dir={self.temporary}"),
            "--disable-usage-stats",
        ]
        code = "import sys; from ray.scripts.scripts import main; sys.exit(main())"
        started = subprocess.run(
            [sys.executable, "-c", code, "start", "--head", *words],
            env=self.environment,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert started.returncode == 0, started.stdout + started.stderr

    def call(self, *words: str) -> "subprocess.Popen[str]":
        """A caller with RAY_ADDRESS set to the dashboard."""
        return subprocess.Popen(
            [*TOCSIN, "chaos", "run", *words],
            env={**self.environment, "RAY_ADDRESS": self.address},
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def processes(self) -> Sequence[psutil.Process]:
        """Every process that was started for this head: they all carry its mark."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get("TOCSIN_MARK") == str(self.folder):
                    found.append(process)
        return found

    def close(self) -> None:
        while ours := self.processes():  # one that is being ended may start another
            for process in ours:
                with suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(ours, timeout=10)
        shutil.rmtree(self.temporary, ignore_errors=True)


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    up = Head(tmp_path_factory.mktemp("head"))
    try:
        yield up
    finally:
        up.close()


def verdict(head: Head) -> "dict[str, object]":
    found: dict[str, object] = json.loads((head.folder / "store/latest/verdict.json").read_text())
    return found


def is_judged(head: Head, caller: "subprocess.Popen[str]", err: str) -> bool:
    """The exit code is the run's; on a busy machine an alarm may come late, and fail it."""
    found = verdict(head)
    assert found["verdict"] in ("pass", "fail", "vacuous"), err
    return found["exit_code"] == caller.returncode


def job_of(err: str) -> str:
    found = re.search(r"Ray job (\S+) at", err)
    assert found is not None, err
    return found.group(1)


def test_smoke_runs_as_a_job_with_an_application_of_its_own(head: Head) -> None:
    """Exit code, progress, verdict and report come back; nothing serves there afterwards."""
    caller = head.call("smoke", "--seed", "11")
    out, err = caller.communicate(timeout=LIMIT_S)
    assert out == ""
    assert "injecting faults under load" in err
    assert "tocsin-archive" not in err
    assert "deploys an application" in err
    assert is_judged(head, caller, err)
    assert verdict(head)["seed"] == 11
    assert "</html>" in (head.folder / "store/latest/report.html").read_text()
    origin = json.loads((head.folder / "store/latest/origin.json").read_text())
    assert origin["origin"] == f"Ray job {job_of(err)} at {head.address}"


def test_what_a_killed_run_left_does_not_break_the_next_and_ctrl_c_heals(head: Head) -> None:
    """Its driver is killed while faults are in; the next run deploys anew, and is stopped."""
    killed = head.call("smoke")
    assert killed.stderr is not None
    for line in killed.stderr:
        if "injecting faults" in line:
            break
    for process in head.processes():
        with suppress(psutil.Error):
            if "env:TOCSIN_SPEC" in process.cmdline():
                process.kill()
    _, err = killed.communicate(timeout=LIMIT_S)
    assert killed.returncode == 2, err
    assert "and left no report; its last lines:" in err
    stopped = head.call("smoke")
    heard = ""
    assert stopped.stderr is not None
    for line in stopped.stderr:
        heard += line
        if "injecting faults" in line:
            break
    assert "deploys an application" in heard
    stopped.send_signal(signal.SIGINT)
    _, err = stopped.communicate(timeout=LIMIT_S)
    assert stopped.returncode == 4, heard + err
    assert verdict(head)["exit_code"] == 4


def test_an_application_that_serves_is_attacked_and_still_serves_afterwards(head: Head) -> None:
    """Nothing is deployed, nothing deleted; a run that would deploy its own is refused."""
    import httpx

    gcs = _gcs(head)
    served = subprocess.Popen(
        [*TOCSIN, "serve", "--port", str(free_port()), "--max-length", "512"],
        env={**head.environment, "RAY_ADDRESS": gcs},
        cwd=head.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert served.stdout is not None
        line = served.stdout.readline()
        found = re.search(r"at (http://\S+)", line)
        assert found is not None, line
        rival = subprocess.run(
            [*TOCSIN, "chaos", "run", "smoke"],
            env={**head.environment, "RAY_ADDRESS": gcs},
            cwd=head.folder,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        assert "an application 'tocsin' serves on this cluster" in rival.stderr
        assert httpx.get(f"{found.group(1)}/health", timeout=30).status_code == 200
        caller = head.call("smoke")
        _, err = caller.communicate(timeout=LIMIT_S)
        assert is_judged(head, caller, err)
        assert f"attacks what serves at {found.group(1)}" in err
        assert httpx.get(f"{found.group(1)}/health", timeout=30).status_code == 200
    finally:
        served.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            served.communicate(timeout=180)
        served.kill()
        served.communicate()


def _gcs(head: Head) -> str:
    """host:port of the head, as Ray wrote it down."""
    until_s = time.monotonic() + 30
    while time.monotonic() < until_s:
        for process in head.processes():
            with suppress(psutil.Error):
                words = process.cmdline()
                if "gcs_server" in words[0]:
                    values = dict(
                        w[2:].split("=", 1) for w in words if w.startswith("--") and "=" in w
                    )
                    return f"{values['node-ip-address']}:{values['gcs_server_port']}"
        time.sleep(0.2)
    raise AssertionError("the head has no GCS")
