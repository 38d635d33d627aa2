"""A chaos run that joins what is served, through Ray's client port as from another pod."""

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.ray_jobs.served import CHAT
from tests.ray_jobs.served_apart import Apart, served_apart
from tests.ray_jobs.tiny_model import save_tiny_model

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore"),
]

FAULTS: list[dict[str, Any]] = [
    {
        "id": "poisoned",
        "kind": "kv.poisoned_page",
        "when": {"clock": "decode_step", "at": [10]},
        "expect": {"within": "30s", "recover_within": "60s"},
    },
    {
        "id": "weight",
        "kind": "weight.bitflip",
        "when": {"clock": "decode_step", "at": [24]},
        "expect": {"within": "30s", "recover_within": "60s"},
    },
]
FREEZE: dict[str, Any] = {
    "id": "frozen",
    "kind": "actor.freeze",
    "params": {"duration_s": 6.0},
    "when": {"clock": "request", "at": [2]},
    "expect": {"within": "30s", "recover_within": "60s"},
}


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apart]:
    model = save_tiny_model(tmp_path_factory.mktemp("tiny"))
    with served_apart(model, tmp_path_factory.mktemp("state")) as one:
        yield one


def _experiment(folder: Path, *faults: dict[str, Any]) -> Path:
    prompts = [{"id": f"p{i}", "text": f"Ring the bell {i}"} for i in range(6)]
    (folder / "prompts.json").write_text(json.dumps(prompts))
    document = {
        "apiVersion": "chaos/v1",
        "kind": "Experiment",
        "name": "joined",
        "seed": 3,
        "workload": {
            "prompts": str(folder / "prompts.json"),
            "arrival": "closed",
            "concurrency": 4,
            "requests": 24,
            "abort_ratio": 0.0,
            "max_new_tokens": 16,
            "deadline": "120s",
        },
        "steady_state": {"warmup": 2, "window": "1s", "good_windows": 1},
        "faults": list(faults),
        "checks": [
            {"id": name}
            for name in (
                "golden.tokens",
                "stream.prefix",
                "lifecycle.exactly_one_terminal",
                "lifecycle.no_lost",
                "kv.conservation",
                "detection.matrix",
            )
        ],
        "safety": {"scope": "isolated", "max_targets": 1.0, "max_duration": "10m", "ttl": "8s"},
    }
    path = folder / "joined.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def _run(apart: Apart, spec: Path, store: Path) -> int:
    log = store.parent / "run.log"
    words = ("chaos", "run", str(spec), "--on", apart.url, "--store", str(store))
    code = apart.begin(*words, log=log).wait(600)
    if code:
        print(log.read_text()[-4000:])
    return code


def _until(log: Path, words: str, process: "subprocess.Popen[bytes]") -> None:
    until_s = time.monotonic() + 300
    while words not in log.read_text():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < until_s, log.read_text()
        time.sleep(0.1)


def _serves(apart: Apart) -> bool:
    """Both replicas live, and a person is answered."""
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
    models = httpx.get(f"{apart.url}/v1/models", timeout=60).json()
    body["model"] = models["data"][0]["id"]
    answer = httpx.post(f"{apart.url}{CHAT}", json=body, timeout=60)
    health = httpx.get(f"{apart.url}/health", timeout=60).json()
    return answer.status_code == 200 and health["replicas"] == 2


def test_a_run_joins_passes_and_leaves_the_application_as_it_was(
    apart: Apart, tmp_path: Path
) -> None:
    """Nothing is deployed; the manifest says what was served in the place of what was asked."""
    spec, store = _experiment(tmp_path, *FAULTS), tmp_path / "store"
    before = set(httpx.get(f"{apart.url}/health/checker_status").json()["replicas"])
    assert _run(apart, spec, store) == 0
    assert set(httpx.get(f"{apart.url}/health/checker_status").json()["replicas"]) == before
    assert _serves(apart)
    manifest = json.loads((store / "latest" / "manifest.json").read_text())
    attached = manifest["facts"]["attached"]
    assert attached["url"] == apart.url
    assert "slots is 4, the experiment said 8" in attached["replaced"]
    assert manifest["spec"]["system"]["max_length"] == 256
    assert manifest["certificate"]["bit_exact"] is True
    # The replicas write into a folder of their own, as in another pod.
    assert list((store / "latest" / "logs" / "failures").glob("failures-*.jsonl"))
    assert (store / "latest" / "repro" / "index.json").is_file()


def test_a_run_after_it_strikes_anew(apart: Apart, tmp_path: Path) -> None:
    """The replicas have done orders of these names before: those of this run are others."""
    spec, store = _experiment(tmp_path, *FAULTS), tmp_path / "store"
    assert _run(apart, spec, store) == 0
    verdict = json.loads((store / "latest" / "verdict.json").read_text())
    assert [fault["fired"] for fault in verdict["faults"]] == [1, 1]


def test_a_killed_driver_leaves_nothing_armed(apart: Apart, tmp_path: Path) -> None:
    """SIGKILL in the middle: leases run out, `heal --all` shows it, the next run is clean."""
    spec, store = _experiment(tmp_path, FREEZE, *FAULTS), tmp_path / "store"
    log = tmp_path / "killed.log"
    words = ("chaos", "run", str(spec), "--on", apart.url, "--store", str(store))
    process = apart.begin(*words, log=log)
    _until(log, "frozen@0: actor.freeze on", process)
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    healed = apart.begin("chaos", "heal", "--all", "--store", str(store), log=tmp_path / "heal.log")
    assert healed.wait(120) == 0, (tmp_path / "heal.log").read_text()
    assert "no fault is left armed" in (tmp_path / "heal.log").read_text()
    assert _run(apart, _experiment(tmp_path, *FAULTS), store) == 0
    assert _serves(apart)


def test_sigterm_heals_and_leaves_a_verdict_with_exit_code_4(apart: Apart, tmp_path: Path) -> None:
    """A pod that is deleted has 30 s; the verdict says why the run ended."""
    spec, store = _experiment(tmp_path, FREEZE, *FAULTS), tmp_path / "store"
    log = tmp_path / "terminated.log"
    words = ("chaos", "run", str(spec), "--on", apart.url, "--store", str(store))
    process = apart.begin(*words, log=log)
    _until(log, "injecting faults under load", process)
    _until(log, "frozen@0: actor.freeze on", process)
    began_s = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 4, log.read_text()[-3000:]
    took_s = time.monotonic() - began_s
    verdict = json.loads((store / "latest" / "verdict.json").read_text())
    assert verdict["exit_code"] == 4
    assert any("SIGTERM was received" in reason for reason in verdict["reasons"])
    assert took_s < 30, f"{took_s:.1f} s"
    assert _serves(apart)


def test_a_cluster_that_serves_something_else_is_told(apart: Apart, tmp_path: Path) -> None:
    """A policy that stands in the way of nothing, an address that is wrong: one line, exit 3."""
    spec, log = _experiment(tmp_path, *FAULTS), tmp_path / "wrong.log"
    other = Apart(apart.url, "ray://127.0.0.1:9")
    words = ("chaos", "run", str(spec), "--on", apart.url, "--store", str(tmp_path / "store"))
    assert other.begin(*words, log=log).wait(120) == 3
    [line] = [line for line in log.read_text().splitlines() if line.startswith("tocsin: ")]
    assert "ray: found no cluster at ray://127.0.0.1:9" in line
