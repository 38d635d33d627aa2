"""A run as a Ray job: submitted, followed, stopped, brought home, or explained in one line."""

import gc
import os
import re
import shlex
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.ray_jobs.remote.fake_dashboard import FakeDashboard
from tests.ray_jobs.remote.kube import archive_lines
from tocsin.core.errors import EnvironmentFault
from tocsin.ray_jobs.remote import ray_cluster, ray_logs
from tocsin.ray_jobs.remote.order import make_order
from tocsin.ray_jobs.remote.ray_job import run_on_ray

# Ray's client asks aiohttp for its default in the old way, and leaves a cut websocket to the
# collector of garbage.
pytestmark = [
    pytest.mark.filterwarnings("ignore:ssl=None is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Unclosed connection:ResourceWarning"),
]

RAY_SAYS = [
    "2026-11-29 21:53:13,562\tINFO job_manager.py:581 -- Runtime env is setting up.",
    "Running entrypoint for job x: exec tocsin chaos run",
]
SHOWN = ["[0:00] starting the system", "", "ümlaut, at the end of a piece", "PASS (exit code 0)"]
RUNNING = {"tocsin": {"status": "RUNNING", "route_prefix": "/", "last_deployed_time_s": 2000.0}}


class Caller:
    """A person with a terminal."""

    def __init__(self, store: Path) -> None:
        self.store = store
        self.said: list[str] = []
        self.shown: list[str] = []

    def run(self, address: str, **options: object) -> int:
        order = make_order("smoke", seed=7, profile=None, **options)  # type: ignore[arg-type]
        say, show = self.said.append, self.shown.append
        return run_on_ray(order, address, self.store, say=say, show=show)


@pytest.fixture
def caller(tmp_path: Path) -> Caller:
    return Caller(tmp_path / "store")


@pytest.fixture
def dashboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDashboard]:
    """With a job that passes, on a cluster where nothing serves."""
    for name in ("RAY_ADDRESS", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(ray_logs, "_PAUSE_S", 0.01)
    lines = [*RAY_SAYS, *SHOWN, *archive_lines(tmp_path / "far"), ""]
    with FakeDashboard(log="\n".join(lines)) as up:
        yield up
    gc.collect()


def test_a_run_comes_home_and_its_words_are_shown(caller: Caller, dashboard: FakeDashboard) -> None:
    """Without Ray's own lines and without the frame; latest leads to it."""
    assert caller.run(dashboard.address) == 0
    assert caller.shown == SHOWN
    run_dir = (caller.store / "latest").resolve()
    assert run_dir.name == "20261129T100000Z-0123456789ab"
    assert "Ray job tocsin-smoke-" in (run_dir / "origin.json").read_text()


def test_what_is_submitted_says_what_it_is_and_asks_for_no_core(
    caller: Caller, dashboard: FakeDashboard
) -> None:
    """The text of the experiment travels; a stop leaves time to heal."""
    caller.run(dashboard.address)
    (job,) = dashboard.submitted
    assert job["entrypoint_num_cpus"] == 0
    assert job["metadata"] | {"seed": "7"} == job["metadata"]
    assert job["metadata"]["tocsin"] == "chaos-run"
    variables = job["runtime_env"]["env_vars"]
    assert "kv.poisoned_page" in variables["TOCSIN_SPEC"]
    assert variables["TOCSIN_SPEC_NAME"] == "smoke"
    assert int(variables["RAY_JOB_STOP_WAIT_TIME_S"]) >= 60
    words = shlex.split(job["entrypoint"].partition("exec ")[2])
    assert words[:6] == ["tocsin", "chaos", "run", "env:TOCSIN_SPEC", "--seed", "7"]
    assert "--print-archive" in words
    assert "--on" not in words


@pytest.mark.parametrize("cuts", [[0], [60, 10, 1], [700, 1400, 2000], [1, 2, 3, 4, 5]])
def test_a_log_that_is_cut_again_and_again_loses_nothing_and_says_nothing_twice(
    caller: Caller, dashboard: FakeDashboard, cuts: list[int]
) -> None:
    """Each connection begins at the beginning."""
    dashboard.cuts, dashboard.lives = cuts, len(cuts) + 1
    assert caller.run(dashboard.address) == 0
    assert caller.shown == SHOWN
    assert dashboard.connections >= len(cuts)


def test_the_end_of_a_log_that_the_stream_lost_is_read_whole(
    caller: Caller, dashboard: FakeDashboard
) -> None:
    """The stream ended with the job, before its last lines."""
    dashboard.cuts, dashboard.lives = [200], 0
    assert caller.run(dashboard.address) == 0
    assert caller.shown == SHOWN


def test_a_dashboard_that_restarts_meanwhile_does_not_end_the_run(
    caller: Caller, dashboard: FakeDashboard
) -> None:
    """An answer that fails says nothing about the job."""
    dashboard.unreachable, dashboard.lives = 3, 2
    assert caller.run(dashboard.address) == 0


@pytest.mark.parametrize("code", [1, 3, 4, 5])
def test_the_exit_code_is_the_runs_own(
    caller: Caller, dashboard: FakeDashboard, tmp_path: Path, code: int
) -> None:
    """Ray says FAILED to each of them."""
    dashboard.log = "\n".join(archive_lines(tmp_path / "other", exit_code=code))
    dashboard.end = {"status": "FAILED", "driver_exit_code": code}
    assert caller.run(dashboard.address) == code


def test_ctrl_c_stops_the_job_and_still_brings_its_report_home(
    caller: Caller, dashboard: FakeDashboard, tmp_path: Path
) -> None:
    """Aborted is 4, by the archive: Ray knows no code of a stopped job."""
    dashboard.log = "\n".join(archive_lines(tmp_path / "other", exit_code=4))
    dashboard.until_stopped, dashboard.end = True, {"status": "STOPPED"}
    _interrupt_when(lambda: bool(dashboard.connections))
    assert caller.run(dashboard.address) == 4
    assert dashboard.stops == 1
    assert (caller.store / "latest" / "report.html").is_file()


def test_a_second_ctrl_c_leaves_at_once_and_says_how_to_look(
    caller: Caller, dashboard: FakeDashboard
) -> None:
    """130, and the command that shows the log."""
    dashboard.lives = 10**6
    dashboard.until_stopped = True
    _interrupt_when(lambda: bool(dashboard.connections))
    _interrupt_when(lambda: bool(dashboard.stops))
    assert caller.run(dashboard.address) == 130
    assert "look: ray job logs tocsin-smoke-" in caller.said[-1]


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ({"status": "FAILED", "driver_exit_code": 137}, "ended FAILED with exit code 137"),
        ({"status": "STOPPED"}, "was stopped by someone"),
        ({"status": "FAILED", "message": "node died\nsorry"}, r"failed \(node died sorry\)"),
    ],
)
def test_a_job_that_dies_without_a_report_is_unknown_with_its_last_lines(
    caller: Caller, dashboard: FakeDashboard, end: dict[str, object], words: str
) -> None:
    """Exit code 2 and one line."""
    dashboard.log, dashboard.end = "one\ntwo\nthree\nfour\n", end
    assert caller.run(dashboard.address) == 2
    assert re.search(f"{words} and left no report", caller.said[-1])
    assert "its last lines: two | three | four" in caller.said[-1]
    assert "\n" not in caller.said[-1]


def test_a_cluster_without_tocsin_is_told_from_a_run_that_died(
    caller: Caller, dashboard: FakeDashboard
) -> None:
    """With the reason why nothing is uploaded."""
    dashboard.log = "\n".join(RAY_SAYS)
    dashboard.end = {"status": "FAILED", "driver_exit_code": 127}
    with pytest.raises(EnvironmentFault, match=r"has no `tocsin` .*chart's image.*not uploaded"):
        caller.run(dashboard.address)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("0.0.0.0", "http://127.0.0.1:8123"),
        ("127.0.0.1", "http://127.0.0.1:8123"),
        ("10.0.0.7", "http://10.0.0.7:8123"),
    ],
)
def test_what_serves_there_is_attacked_and_nothing_is_deployed(
    caller: Caller, dashboard: FakeDashboard, host: str, url: str
) -> None:
    """By the address that the head node reaches it at."""
    dashboard.applications = RUNNING
    dashboard.http_options = {"host": host, "port": 8123}
    caller.run(dashboard.address)
    assert f"--on {url}" in dashboard.submitted[0]["entrypoint"]
    assert dashboard.submitted[0]["metadata"]["tocsin_deploys"] == "no"


@pytest.mark.parametrize(
    ("deployed_s", "status", "attacked"),
    [(1500.0, "STOPPED", False), (2500.0, "STOPPED", True), (1500.0, "SUCCEEDED", False)],
)
def test_what_a_killed_run_left_serving_is_no_service(
    caller: Caller, dashboard: FakeDashboard, deployed_s: float, status: str, attacked: bool
) -> None:
    """Deployed while that job ran, it was that job's."""
    dashboard.applications = {"tocsin": {**RUNNING["tocsin"], "last_deployed_time_s": deployed_s}}
    dashboard.jobs = [
        {
            "type": "SUBMISSION",
            "submission_id": "tocsin-smoke-0",
            "status": status,
            "entrypoint": "x",
            "metadata": {"tocsin": "chaos-run", "tocsin_deploys": "yes"},
            "start_time": 1_000_000,
            "end_time": 2_000_000,
        }
    ]
    caller.run(dashboard.address)
    assert ("--on" in dashboard.submitted[0]["entrypoint"]) is attacked


def test_a_run_that_is_under_way_is_named_with_the_command_that_ends_it(
    caller: Caller, dashboard: FakeDashboard
) -> None:
    """One at a time."""
    dashboard.jobs = [
        {
            "type": "SUBMISSION",
            "submission_id": "tocsin-smoke-0",
            "status": "RUNNING",
            "entrypoint": "x",
            "metadata": {"tocsin": "chaos-run"},
        }
    ]
    with pytest.raises(EnvironmentFault, match="ray job stop tocsin-smoke-0 --address"):
        caller.run(dashboard.address)
    assert dashboard.submitted == []


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("<html>some other page</html>", "is not a Ray dashboard"),
        ({"hello": 1}, "is not a Ray dashboard"),
        ({"version": "4", "ray_version": "2.9.3"}, r"runs Ray 2\.9\.3, expected at least 2\.40"),
    ],
)
def test_an_address_that_is_none_of_a_cluster_we_can_use_is_said_so(
    caller: Caller, dashboard: FakeDashboard, version: object, words: str
) -> None:
    """Before anything is sent."""
    dashboard.version = version
    with pytest.raises(EnvironmentFault, match=words) as caught:
        caller.run(dashboard.address)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("listens", [False, True], ids=["nobody", "silent"])
def test_nobody_there_is_one_line_with_three_remedies(
    caller: Caller, monkeypatch: pytest.MonkeyPatch, listens: bool
) -> None:
    """Also where something listens and says nothing."""
    monkeypatch.setattr(ray_cluster, "TIMEOUT_S", 0.3)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        if listens:
            other.listen()
        address = f"http://127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(EnvironmentFault, match=r"nobody answers at .*port-forward") as caught:
            caller.run(address)
    assert "\n" not in str(caught.value)


def test_a_cluster_that_wants_a_token_gets_the_one_that_was_meant_for_it(
    caller: Caller, dashboard: FakeDashboard, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """From the environment or a file that is named; otherwise it is asked for."""
    monkeypatch.setenv("HOME", str(tmp_path))
    dashboard.token = "secret"
    with pytest.raises(EnvironmentFault, match="set RAY_AUTH_TOKEN"):
        caller.run(dashboard.address)
    (tmp_path / "token").write_text("secret\n")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    assert caller.run(dashboard.address) == 0


def test_the_token_of_this_machine_is_not_shown_to_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A server that answers 401 must not be able to collect it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("mine")
    assert ray_cluster._token("http://127.0.0.1:8265") == "mine"
    assert ray_cluster._token("http://ray.example:8265") == ""
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    assert ray_cluster._token("http://ray.example:8265") == "mine"


def test_a_cluster_that_takes_no_job_says_why_in_one_line(
    caller: Caller, dashboard: FakeDashboard
) -> None:
    """Ray answers with a traceback."""
    dashboard.refuses = "Traceback\n  File x\nNo available agent to submit job"
    with pytest.raises(EnvironmentFault, match="No available agent") as caught:
        caller.run(dashboard.address)
    assert "\n" not in str(caught.value)


def _interrupt_when(ready: Callable[[], bool]) -> None:
    """Send this process what Ctrl-C sends, once something is so."""

    def wait() -> None:
        until_s = time.monotonic() + 20
        while not ready() and time.monotonic() < until_s:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=wait, daemon=True).start()
