"""The whole way on this machine: kubectl, Job, a real run as its container, archive, report."""

import copy
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.checkout import ROOT
from tests.ray_jobs.remote.kube import FakeCluster, cron_job

TOCSIN = [sys.executable, "-c", "from tocsin.ray_jobs.cli import main; main()"]
LIMIT_S = 800.0
"""A minute where there are two free cores."""

EXPERIMENT = """
apiVersion: chaos/v1
kind: Experiment
name: mine
hypothesis: a poisoned page and a malformed request are seen and survived
seed: 7
system: {model: smollm2-135m, replicas: 2, slots: 8, pages: 96, profile: full}
workload: {prompts: builtin/golden-24, concurrency: 8, requests: 24, max_new_tokens: 8}
steady_state: {warmup: 2, window: 1s, good_windows: 2}
faults:
  - {id: page, kind: kv.poisoned_page, when: {clock: decode_step, at: [12]}}
  - {id: malformed, kind: batch.malformed, when: {clock: request, at: [8]}}
safety: {scope: in_process, max_targets: 1.0, max_duration: 8m, ttl: 15s}
budget: {availability: 0.8}
"""


def arm(cluster: FakeCluster) -> None:
    """A release whose driver is this program; it deploys on a Ray of its own."""
    template = cron_job()
    pod = template["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    pod["containers"] = [copy.deepcopy(pod["containers"][1])]
    pod["containers"][0] |= {
        "command": TOCSIN,
        "args": ["chaos", "run", "first-light", "--store", str(cluster.folder / "far")],
        "env": [{"name": "PYTHONPATH", "value": str(ROOT)}],
    }
    cluster.put("cronjobs.batch", template)


@contextmanager
def call(cluster: FakeCluster, *words: str, cwd: Path) -> "Iterator[subprocess.Popen[str]]":
    """A caller as a person would start it; nothing that it started outlives the test."""
    clean = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    caller = subprocess.Popen(
        [*TOCSIN, "chaos", "run", *words, "--kube-context", "demo", "--namespace", "prod"],
        cwd=cwd,
        env={**clean, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        with caller:
            try:
                yield caller
            finally:
                caller.kill()
    finally:
        _end_driver(cluster)


def heard_until(caller: "subprocess.Popen[str]", wanted: str) -> None:
    """Read what the caller says until a line holds something."""
    assert caller.stderr is not None
    heard: list[str] = []
    while not heard or wanted not in heard[-1]:
        heard.append(caller.stderr.readline())
        assert heard[-1], heard


def _end_driver(cluster: FakeCluster) -> None:
    """End the container's process by the id that the fake wrote down; its kubelet ends with it."""
    with suppress(ProcessLookupError, FileNotFoundError):
        os.kill(int((cluster.folder / "driver.pid").read_text()), signal.SIGTERM)


@pytest.mark.ray
@pytest.mark.model
@pytest.mark.release
@pytest.mark.timeout(LIMIT_S + 100)
def test_a_local_experiment_runs_as_a_job_and_its_report_is_here_afterwards(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    """The file travels, its seed too; the verdict, the report and the exit code come back."""
    arm(cluster)
    (tmp_path / "mine.yaml").write_text(EXPERIMENT)
    with call(cluster, "mine.yaml", "--seed", "5", cwd=tmp_path) as caller:
        out, err = caller.communicate(timeout=LIMIT_S)
    assert out == ""
    assert "injecting faults under load" in err
    assert "tocsin-archive" not in err
    run_dir = (tmp_path / "store" / "latest").resolve()
    assert run_dir.parent == tmp_path / "store" / "mine"
    verdict = json.loads((run_dir / "verdict.json").read_text())
    # On a machine that is busy with something else an alarm may come late: that is judged, too.
    assert verdict["verdict"] in ("pass", "fail", "vacuous"), err
    assert (verdict["exit_code"], verdict["seed"]) == (caller.returncode, 5)
    assert "</html>" in (run_dir / "report.html").read_text()
    far = cluster.folder / "far" / "mine" / run_dir.name
    for name in ("history.parquet", "manifest.json", "report.html"):
        assert (run_dir / name).read_bytes() == (far / name).read_bytes()
    assert "mine.yaml --seed 5" in (run_dir / "manifest.json").read_text()


@pytest.mark.ray
@pytest.mark.model
@pytest.mark.release
@pytest.mark.timeout(LIMIT_S + 100)
def test_ctrl_c_lets_the_run_heal_and_brings_home_what_it_knows(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    """The Job is deleted, its driver hears SIGTERM, and the aborted run's report still arrives."""
    arm(cluster)
    (tmp_path / "mine.yaml").write_text(EXPERIMENT)
    with call(cluster, "mine.yaml", cwd=tmp_path) as caller:
        heard_until(caller, "injecting faults")
        caller.send_signal(signal.SIGINT)
        _, err = caller.communicate(timeout=LIMIT_S)
    assert caller.returncode == 4, err
    assert "asking the run to heal and end" in err
    assert cluster.deleted
    verdict = json.loads((tmp_path / "store" / "latest" / "verdict.json").read_text())
    assert verdict["exit_code"] == 4
    assert any("SIGTERM" in reason for reason in verdict["reasons"])


def test_a_second_ctrl_c_leaves_at_once_and_says_how_to_look(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    """Whatever the driver still does."""
    script = (
        "import signal, time\n"
        "signal.signal(15, lambda *_: print('healing', flush=True))\n"
        "print('up', flush=True)\n"
        "for _ in range(100): time.sleep(0.1)\n"
    )
    template = cron_job()
    pod = template["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    command = [sys.executable, "-c", script]
    pod["containers"] = [{"name": "chaos", "command": command, "args": ["chaos", "run", "smoke"]}]
    cluster.put("cronjobs.batch", template)
    with call(cluster, "smoke", cwd=tmp_path) as caller:
        for word in ("up", "healing"):
            heard_until(caller, word)
            caller.send_signal(signal.SIGINT)
        _, err = caller.communicate(timeout=30)
    assert caller.returncode == 130
    assert "left; the run ends by itself; look: kubectl --context demo" in err
