"""The commands: their exit codes, and that they print what to do next."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.ray_jobs.sim.little import experiment, on_requests
from tocsin.ray_jobs.commands.chaos import chaos_app
from tocsin.ray_jobs.sim.experiment_file import write_experiment

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
