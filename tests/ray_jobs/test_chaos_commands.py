"""`tocsin chaos export` and `compare`: files, exit codes, and one line for every mistake."""

import json
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from tests.chaos.compare.stores import make_store
from tests.chaos.mesh.kinds import Workflow
from tocsin.chaos.policy import POLICY_ENV
from tocsin.chaos.spec_file import load_experiment
from tocsin.core.errors import SpecError
from tocsin.ray_jobs import ctk_system
from tocsin.ray_jobs.cli import app
from tocsin.ray_jobs.commands.chaos_export import SERVED
from tocsin.ray_jobs.own_alerting import URL


def tocsin(*words: object) -> Result:
    return CliRunner().invoke(app, ["chaos", *map(str, words)])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return make_store(tmp_path_factory.mktemp("runs"))


def test_export_writes_a_chaos_toolkit_document(tmp_path: Path) -> None:
    """To a file or to standard output, the same; its system is one that can be imported."""
    out = tmp_path / "smoke.json"
    assert tocsin("export", "smoke", "--to", "chaostoolkit", "--out", out).exit_code == 0
    text = out.read_text(encoding="utf-8")
    assert tocsin("export", "smoke", "--to", "chaostoolkit").stdout == text
    document = json.loads(text)
    assert document["title"] == "smoke"
    module, _, function = document["configuration"]["tocsin_system"]["default"].partition(":")
    assert callable(getattr(import_module(module), function))


def test_export_for_chaos_mesh_tells_what_it_leaves_out(tmp_path: Path) -> None:
    """One line on standard error for each fault that has no equivalent."""
    out = tmp_path / "workflow.yaml"
    result = tocsin(
        "export", "first-light", "--to", "chaos-mesh", "--namespace", "llm", "--out", out
    )
    assert result.exit_code == 0
    Workflow.model_validate(yaml.safe_load(out.read_text(encoding="utf-8")))
    told = [line for line in result.stderr.splitlines() if ": none: " in line]
    spec = load_experiment("first-light")
    left_out = [one.id for one in spec.faults if any(f" {one.id} (" in line for line in told)]
    assert len(left_out) >= len(spec.faults) - 3
    assert "kill" not in left_out


@pytest.mark.parametrize(
    "words",
    [
        ("export", "no-such-thing", "--to", "chaostoolkit"),
        ("export", "smoke", "--to", "chaos-mesh"),
        ("export", "smoke", "--to", "chaostoolkit", "--out", "/nowhere/at/all.json"),
        ("compare", "no", "thing", "--store", "/nowhere"),
    ],
)
def test_a_mistake_is_one_line_and_64(words: tuple[str, ...]) -> None:
    """Nothing half-written, no traceback."""
    result = tocsin(*words)
    assert result.exit_code == 64
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(("b", "code"), [("clean", 0), ("wrong", 1)])
def test_compare_ends_with_one_when_b_is_worse(
    made: dict[str, Path], tmp_path: Path, b: str, code: int
) -> None:
    """A run is no worse than itself."""
    page = tmp_path / "page.html"
    result = tocsin("compare", made["clean"], made[b], "--html", page)
    assert result.exit_code == code
    assert ("B is worse" in result.stdout) is bool(code)
    assert ("<title>Worse" in page.read_text(encoding="utf-8")) is bool(code)


def test_compare_by_name_takes_the_newest_run_and_prints_json(made: dict[str, Path]) -> None:
    """`small` is the run with the wrong answers: it came last."""
    result = tocsin("compare", "other", "small", "--store", made["store"], "--json")
    told = json.loads(result.stdout)
    assert told["b"]["run"].endswith(made["wrong"].name)
    assert told["same_plan"] is False
    assert result.exit_code == 1


def test_the_help_says_what_worse_means() -> None:
    """The same words as on the page."""
    from tocsin.chaos.compare.meaning import MEANING

    said = " ".join(tocsin("compare", "--help").stdout.split())
    assert " ".join(MEANING.split())[:60] in said


def test_serve_refuses_a_store_that_is_no_folder() -> None:
    """Before any port is taken."""
    result = tocsin("serve", "--store", "/nowhere")
    assert result.exit_code == 64
    assert "/nowhere" in result.stderr


def test_an_exported_experiment_is_served_as_a_chaos_run_serves_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cluster, deployment and system are made in this order and taken down again."""
    told: list[str] = []

    class Recorded:
        def __init__(self, *words: Any, **more: Any) -> None:
            told.append("system")

        def close(self) -> None:
            told.append("closed")

    @contextmanager
    def cluster(replicas: int, nodes: int = 1) -> Any:
        told.append(f"cluster of {replicas}")
        yield SimpleNamespace(started=True)
        told.append("cluster down")

    def deploy(*words: Any, **more: Any) -> str:
        told.append("deployed")
        return "application"

    monkeypatch.setattr(ctk_system, "Cluster", cluster)
    monkeypatch.setattr(ctk_system, "deploy", deploy)
    monkeypatch.setattr(ctk_system, "RaySystem", Recorded)
    monkeypatch.setattr(ctk_system, "prepare", lambda model: tmp_path)
    spec = load_experiment("smoke")
    with ctk_system.served(spec, {"tocsin_store": str(tmp_path)}) as subject:
        assert isinstance(subject.system, Recorded)
    assert told == ["cluster of 2", "deployed", "system", "closed", "cluster down"]
    assert f"{ctk_system.served.__module__}:served" == SERVED


def test_a_place_with_a_policy_is_left_to_chaos_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Toolkit would not keep to it."""
    monkeypatch.setenv(POLICY_ENV, str(tmp_path / "policy.yaml"))
    with (
        pytest.raises(SpecError, match="tocsin chaos run"),
        ctk_system.served(load_experiment("smoke"), {}),
    ):
        pass


@pytest.mark.parametrize(
    ("words", "environment", "told"),
    [
        (("smoke", "--alerts", "--sim"), {}, "--alerts is for a run that serves the model itself"),
        (("smoke", "--alerts", "--on", "http://a:1"), {}, "reads the Alertmanager of TOCSIN_"),
        (("telemetry", "--alerts"), {}, "telemetry: it takes the receiver of alerts away itself"),
        (("smoke", "--alerts"), {URL: "http://a:1"}, "names another one; leave one of the two out"),
    ],
)
def test_alerting_of_its_own_is_refused_where_it_cannot_be(
    words: tuple[str, ...],
    environment: dict[str, str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In one line, before anything is started."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    result = tocsin("run", *words, "--store", tmp_path)
    assert result.exit_code == 64
    assert told in result.stderr
    assert told in result.stderr.strip().splitlines()[-1]
