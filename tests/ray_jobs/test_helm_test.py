"""The commands of the chart's test pods, as rendered, run on a model that is really served."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml
from typer.testing import CliRunner, Result

from tests.helm.chaos_values import EMPTY_EXPERIMENT, ON, Values, experiment, one, over
from tocsin.core.terms import Profile
from tocsin.engine.weights import prepare
from tocsin.ray_jobs.application import deploy
from tocsin.ray_jobs.cli import app
from tocsin.ray_jobs.cluster import Cluster, free_port
from tocsin.ray_jobs.options import ServeOptions

F = "demo-tocsin"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of the built-in model behind one replica, checked with the profile guard."""
    options = ServeOptions(
        path=str(prepare("smollm2-135m")), profile=Profile.GUARD, replicas=1, slots=2, pages=64
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOCSIN_STATE", str(tmp_path_factory.mktemp("node")))
        patch.setenv("TOCSIN_METRICS_PORT", "0")
        with Cluster(options.replicas):
            yield deploy(options, host="127.0.0.1", port=free_port()).url


def run_test_pod(name: str, values: Values, at: str = "") -> Result:
    """The words of one test pod, with the Service's address replaced where there is one."""
    container = one(values, "Pod", f"{F}-test-{name}")["spec"]["containers"][0]
    assert container["command"] == ["tocsin"]
    words = [at if word.startswith("http://") else word for word in container["args"]]
    return CliRunner().invoke(app, words)


@pytest.mark.ray
@pytest.mark.model
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray warns of its own future
def test_the_probe_passes_where_the_service_is_as_declared_and_only_there(url: str) -> None:
    """A real answer, checks that really ran, and the profile that the values declare."""
    declared: Values = {"checker": {"profile": "guard"}}
    result = run_test_pod("probe", declared, url)
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["ok", "health:"],
        ["ok", "completion:"],
        ["ok", "profile:"],
        ["ok", "checks:"],
    ]
    assert "8 tokens from SmolLM2-135M-Instruct" in result.output

    other: Values = {"checker": {"profile": "full"}, "test": {"withinSeconds": 0}}
    result = run_test_pod("probe", other, url)
    assert result.exit_code == 1
    (failed,) = [line for line in result.output.splitlines() if line.startswith("FAILED")]
    assert failed.startswith("FAILED  profile: the service checks 'guard', expected 'full'")


@pytest.mark.ray
@pytest.mark.model
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("values", [{}, ON], ids=["chaos off", "chaos on, dry"])
def test_what_the_chart_renders_by_default_injects_nothing_into_a_running_service(
    values: Values, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver's own command line under the rendered policy: a plan, its targets, and no harm."""
    text = one(values, "ConfigMap", f"{F}-chaos")["data"]["policy.yaml"]
    address = f"http://{F}-head-svc:8000"
    policy = tmp_path / "policy.yaml"
    policy.write_text(text.replace(address, url))
    pod = one(ON, "CronJob")["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    container = pod["containers"][0]
    store = tmp_path / "store"
    put = {address: url, "/var/lib/tocsin/store": str(store)}
    words = [put.get(word, word) for word in container["args"]]
    monkeypatch.setenv("TOCSIN_CHAOS_POLICY", str(policy))
    done = subprocess.run(
        [sys.executable, "-c", "from tocsin.ray_jobs.cli import main; main()", *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "smoke: seed 7, plan " in done.stdout
    assert "dry run: nothing is injected" in done.stdout
    assert "tocsin-archive - NONE" in done.stdout
    assert not store.exists()
    metrics = httpx.get(f"{url}/metrics").text
    fired = re.findall(r"^tocsin_chaos_faults_injected_total\S* (\S+)$", metrics, re.MULTILINE)
    assert {float(count) for count in fired} <= {0.0}


@pytest.mark.parametrize("name", ["smoke", "poison"])
def test_the_plan_is_that_of_the_releases_experiment(name: str) -> None:
    """Of a built-in one by its name; nothing is asked and nothing injected."""
    result = run_test_pod("plan", over(ON, {"chaos": {"experiment": {"name": name, "seed": 5}}}))
    assert result.exit_code == 0
    assert result.output.startswith(f"{name}: seed 5, plan ")


def test_an_experiment_of_ones_own_is_planned_from_the_mounted_file(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """The file is what the ConfigMap holds at the path that the command names."""
    values = over(ON, experiment(EMPTY_EXPERIMENT))
    mounted = tmp_path_factory.mktemp("etc") / "experiment.yaml"
    mounted.write_text(one(values, "ConfigMap", f"{F}-chaos")["data"]["experiment.yaml"])
    arguments = one(values, "Pod", f"{F}-test-plan")["spec"]["containers"][0]["args"]
    assert arguments[2] == "/etc/tocsin/chaos/experiment.yaml"
    result = CliRunner().invoke(app, [*arguments[:2], str(mounted), *arguments[3:]])
    assert result.exit_code == 0, result.output
    assert result.output.startswith(f"{yaml.safe_load(EMPTY_EXPERIMENT)['name']}: seed 1, plan ")
