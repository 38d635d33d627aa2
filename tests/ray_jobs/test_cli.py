"""The command line: every mistake ends in one line and its exit code, never in a traceback."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from tests.ray_jobs.tiny_model import save_tiny_model
from tocsin.chaos.contract import faults
from tocsin.ray_jobs.cli import app, main
from tocsin.ray_jobs.cluster import free_port
from tocsin.ray_jobs.commands.edge import EXIT_INVALID, EXIT_SPEC, one_line


def tocsin(*words: str) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def the_line(result: Result) -> str:
    """The one line of a failed command."""
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("tocsin: ")
    return lines[0]


@pytest.fixture
def busy_port() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def experiment(tmp_path: Path, tiny: Path) -> Path:
    """A well-formed experiment on a model that needs no download."""
    path = tmp_path / "one.yaml"
    path.write_text(
        "apiVersion: chaos/v1\nkind: Experiment\nname: one\nhypothesis: nothing breaks\nseed: 1\n"
        f"system: {{model: {tiny}}}\nworkload: {{requests: 4}}\n"
        "faults: [{id: flip, kind: kv.bitflip, when: {clock: decode_step, at: [5]}}]\n"
    )
    return path


def test_the_commands_of_this_version_are_listed_and_no_other() -> None:
    """A command that does nothing yet is not there."""
    commands = {command.name or command.callback.__name__ for command in app.registered_commands}
    groups = {group.name for group in app.registered_groups}
    expected = {
        "serve",
        "reproduce",
        "bisect",
        "digest",
        "top",
        "trace",
        "monitor",
        "probe",
        "scan",
    }
    assert commands == expected
    assert groups == {"chaos", "dashboards", "alerts"}
    words = tocsin("chaos", "--help").stdout
    known = ("lint", "plan", "run", "check", "heal", "catalogue", "report", "demo")
    for name in (*known, "replay", "shrink", "swarm", "export", "compare", "serve"):
        assert name in words


def test_a_plan_is_printed_the_same_twice_and_moves_with_its_seed() -> None:
    """Without starting anything."""
    first, again = (tocsin("chaos", "plan", "smoke", "--seed", "3") for _ in range(2))
    other = tocsin("chaos", "plan", "smoke", "--seed", "4")
    assert first.exit_code == 0
    assert first.stdout == again.stdout
    assert first.stdout != other.stdout
    assert "kv.poisoned_page" in first.stdout


@pytest.mark.parametrize("name", ["first-light", "first_light", "poison", "smoke"])
def test_builtin_experiments_are_well_formed(name: str) -> None:
    """By either spelling of the name."""
    result = tocsin("chaos", "lint", name)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "well-formed" in result.stdout


def test_the_catalogue_shows_every_fault() -> None:
    """From the declarations."""
    words = tocsin("chaos", "catalogue").stdout
    assert all(fault_id in words for fault_id in faults())


@pytest.mark.parametrize("command", ["lint", "plan", "run"])
def test_an_experiment_that_is_not_there_is_a_spec_error(command: str) -> None:
    """With the names that are."""
    result = tocsin("chaos", command, "no-such-thing")
    assert result.exit_code == EXIT_SPEC
    assert "first-light" in the_line(result)


def test_a_wrong_key_in_an_experiment_is_named(experiment: Path) -> None:
    """Before anything is started."""
    experiment.write_text(experiment.read_text() + "sede: 3\n")
    result = tocsin("chaos", "run", str(experiment))
    assert result.exit_code == EXIT_SPEC
    assert "sede" in the_line(result)


def test_a_busy_port_ends_a_run_before_ray_is_started(
    experiment: Path, busy_port: int, tmp_path: Path
) -> None:
    """And it is never a green verdict."""
    result = tocsin(
        "chaos", "run", str(experiment), "--port", str(busy_port), "--store", str(tmp_path / "s")
    )
    assert result.exit_code == EXIT_INVALID
    assert str(busy_port) in result.stderr
    assert "Traceback" not in result.output


def test_serve_says_which_port_is_busy(tiny: Path, busy_port: int) -> None:
    """And how to choose another."""
    result = tocsin("serve", "--model", str(tiny), "--port", str(busy_port))
    assert result.exit_code == EXIT_INVALID
    assert f"127.0.0.1:{busy_port}" in the_line(result)
    assert "--port" in the_line(result)


@pytest.mark.parametrize(("model", "code"), [("no-model", EXIT_SPEC), ("./nowhere", EXIT_INVALID)])
def test_serve_says_which_model_is_missing(model: str, code: int) -> None:
    """An unknown name is a mistake of the caller, an empty folder one of the machine."""
    result = tocsin("serve", "--model", model)
    assert result.exit_code == code
    assert model.removeprefix("./") in the_line(result)


def test_an_unreachable_ray_is_said_in_one_line(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a second, not after Ray's own minutes."""
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{free_port()}")
    result = tocsin("serve", "--model", str(tiny), "--port", "0")
    assert result.exit_code == EXIT_INVALID
    assert "RAY_ADDRESS" in result.stderr
    assert "Traceback" not in result.output


def test_a_store_that_cannot_be_written_is_said_before_the_run(
    experiment: Path, tmp_path: Path
) -> None:
    """A file where the folder should be."""
    blocked = tmp_path / "store"
    blocked.write_text("")
    result = tocsin("chaos", "run", str(experiment), "--store", str(blocked))
    assert result.exit_code == EXIT_INVALID
    assert str(blocked) in result.stderr
    assert "Traceback" not in result.output


def test_heal_says_that_nothing_is_armed(tmp_path: Path) -> None:
    """An empty store is healed; without --all the command asks for it."""
    assert tocsin("chaos", "heal", "--all", "--store", str(tmp_path)).exit_code == 0
    assert tocsin("chaos", "heal", "--store", str(tmp_path)).exit_code == EXIT_SPEC


@pytest.mark.parametrize("command", ["check", "report"])
def test_a_run_that_is_not_there_is_a_spec_error(command: str, tmp_path: Path) -> None:
    """Not an empty verdict."""
    result = tocsin("chaos", command, str(tmp_path / "none"))
    assert result.exit_code == EXIT_SPEC
    assert "none" in result.stderr


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    """`tocsin dashboards list | head -1` says nothing about pipes."""
    command = Path(sys.executable).with_name("tocsin")
    with subprocess.Popen(
        [str(command), "dashboards", "list"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.close()
        assert child.stderr.read() == b""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["chaos", "run", "smoke", "--seed", "abc"],
            "tocsin chaos run: Invalid value for '--seed'",
        ),
        (["chaos", "frob"], "tocsin chaos: No such command 'frob'"),
        (["probe"], "tocsin probe: Missing argument 'url'"),
    ],
)
def test_a_command_line_that_cannot_be_meant_is_one_line_and_a_spec_error(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    said: str,
) -> None:
    """2 would say that a run was unknown or vacuous."""
    monkeypatch.setattr(sys, "argv", ["tocsin", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == EXIT_SPEC
    line = capsys.readouterr().err
    assert line.startswith(said)
    assert line.count("\n") == 1
    assert "--help" in line


def test_a_mistake_of_our_own_is_one_line_and_its_traceback_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whoever meets it has something to report."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    @one_line
    def command() -> None:
        raise IndexError("list index\nout of range")

    with pytest.raises(typer.Exit) as ended:
        command()
    assert ended.value.exit_code == EXIT_INVALID
    (report,) = tmp_path.iterdir()
    assert "IndexError" in report.read_text()
