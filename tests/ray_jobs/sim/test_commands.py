"""The commands: their exit codes, and that they print what to do next."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.ray_jobs.sim.little import MALFORMED, experiment, malformed, on_requests
from tocsin.ray_jobs.commands.chaos import chaos_app
from tocsin.ray_jobs.sim import simulate
from tocsin.ray_jobs.sim.experiment_file import write_experiment
from tocsin.ray_jobs.sim.shrink import MINIMAL
from tocsin.ray_jobs.sim.simulate import Simulator

RUNNER = CliRunner()


def _file(folder: Path, prompts: Path) -> Path:
    wanted = experiment(prompts, on_requests("kill", "actor.kill", 3))
    return write_experiment(folder / "little.yaml", wanted, ("A killed stub.",))


def test_a_simulation_is_run_replayed_and_has_nothing_to_shrink(tmp_path: Path, prompts: Path):
    """The whole way over the files, with the model-free stub."""
    path = _file(tmp_path, prompts)
    store = tmp_path / "store"
    run = RUNNER.invoke(
        chaos_app, ["run", str(path), "--sim", "--model", "stub", "--store", str(store)]
    )
    assert run.exit_code in (0, 2), run.output
    assert "both histories are equal" in run.output
    replayed = RUNNER.invoke(chaos_app, ["replay", str(store / "latest")])
    assert replayed.exit_code == run.exit_code, replayed.output
    assert ": equal" in replayed.output
    missing = RUNNER.invoke(chaos_app, ["replay", f"{store / 'latest'}#99"])
    assert missing.exit_code == 64
    assert "has 0 violations" in missing.output


@pytest.mark.parametrize("command", ["replay", "shrink"])
def test_a_folder_without_a_run_ends_in_one_line(command: str, tmp_path: Path):
    """64: it is the person's input."""
    result = RUNNER.invoke(chaos_app, [command, str(tmp_path)])
    assert result.exit_code == 64
    assert "holds no whole run" in result.output


def test_replays_in_a_row_are_counted(tmp_path: Path, prompts: Path):
    """Three simulations go the same way, and that is said in figures."""
    store = tmp_path / "store"
    words = ["run", str(_file(tmp_path, prompts)), "--sim", "--model", "stub"]
    RUNNER.invoke(chaos_app, [*words, "--store", str(store)])
    replayed = RUNNER.invoke(chaos_app, ["replay", str(store / "latest"), "--times", "3"])
    assert replayed.exit_code == 0, replayed.output
    assert "3 of 3 replays came to the same" in replayed.output


@pytest.mark.slow
def test_a_swarm_run_twice_compares_its_digests(tmp_path: Path):
    """Real engines: two drawn experiments, four runs."""
    words = ["swarm", "2", "--twice", "--model", "tiny", "--keep", str(tmp_path)]
    flown = RUNNER.invoke(chaos_app, words)
    assert "2 of 2 digests are equal the second time" in flown.output, flown.output


def test_a_failed_run_is_shrunk_to_a_file_that_fails_again(
    tmp_path: Path, prompts: Path, tiny: Simulator, monkeypatch: pytest.MonkeyPatch
):
    """From the command line alone: checks are off, four faults come, one page harms."""
    monkeypatch.setattr(simulate, "Simulator", lambda model="tiny": tiny)
    page = {
        "id": "page",
        "kind": "kv.poisoned_page",
        "when": {"at": [2]},
        "expect": {"within": "200ms"},
    }
    harmless = [malformed(n, kind, n) for n, kind in enumerate(MALFORMED[:3])]
    wanted = experiment(prompts, page, *harmless, replicas=1, profile="off")
    path = write_experiment(tmp_path / "whole.yaml", wanted, ("One page harms.",))
    store = tmp_path / "store"
    run = RUNNER.invoke(chaos_app, ["run", str(path), "--sim", "--store", str(store)])
    assert run.exit_code == 1, run.output
    failed = (store / "latest").resolve()
    shrunk = RUNNER.invoke(chaos_app, ["shrink", str(failed)])
    assert shrunk.exit_code == 0, shrunk.output
    assert "minimal: 1 of 4 occurrences" in shrunk.output
    smallest = failed / "shrink" / MINIMAL
    assert f"again: tocsin chaos run {smallest} --sim" in shrunk.output
    again = RUNNER.invoke(chaos_app, ["run", str(smallest), "--sim", "--store", str(store)])
    assert again.exit_code == 1, again.output
