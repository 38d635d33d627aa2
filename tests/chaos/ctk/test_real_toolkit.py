"""The real `chaos` command: what is exported validates, runs, and reports our verdict."""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.chaos.experiments import patient
from tocsin.chaos.ctk.document import toolkit_document
from tocsin.chaos.spec_file import parse_experiment

# The Toolkit's command itself uses names that Python and its logging library have moved.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

ROOT = Path(__file__).parents[3]
PROBES = [{"name": "answered", "metric": "ok_ratio", "op": ">=", "value": 0.95}]


class Chaos:
    """The command `chaos`, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, *words: str) -> tuple[int, str]:
        """In this process: the command's own code without a new interpreter."""
        from chaostoolkit.cli import cli

        done = CliRunner().invoke(cli, ["--no-version-check", *words])
        return done.exit_code, done.output

    def installed(self, *words: str) -> tuple[int, str]:
        """As a person types it."""
        command = [str(Path(sys.executable).with_name("chaos")), "--no-version-check", *words]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=120
        )
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def chaos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Chaos]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOCSIN_STORE", str(tmp_path))
    log = logging.getLogger("chaostoolkit")
    before = log.handlers[:]
    yield Chaos(tmp_path)
    for handler in log.handlers:
        if handler not in before:
            handler.close()
    log.handlers[:] = before


def _write(tmp_path: Path, subject: str, **changes: Any) -> str:
    spec = parse_experiment(patient(steady_state={"probes": PROBES}, **changes))
    path = tmp_path / "experiment.json"
    document = toolkit_document(spec, f"tests.chaos.ctk.subject:{subject}")
    path.write_text(json.dumps(document), encoding="utf-8")
    return path.name


def _journal(tmp_path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((tmp_path / "journal.json").read_text(encoding="utf-8"))
    return found


def test_an_exported_experiment_is_valid_for_the_real_toolkit(chaos: Chaos, tmp_path: Path) -> None:
    """Nothing in it is refused or deprecated; a broken one is refused, so the test can fail."""
    name = _write(tmp_path, "honest")
    code, said = chaos("validate", name)
    assert code == 0, said
    assert "WARNING" not in said
    path = tmp_path / name
    path.write_text(path.read_text().replace('"func": "inject"', '"func": "injekt"'))
    assert chaos("validate", name)[0] == 1


def test_a_run_by_the_real_toolkit_is_our_run(chaos: Chaos, tmp_path: Path) -> None:
    """Faults with evidence, properties, rollback, our verdict and our report."""
    name = _write(tmp_path, "honest")
    code, said = chaos.installed("run", "--journal-path", "journal.json", name)
    assert code == 0, said
    journal = _journal(tmp_path)
    assert (journal["status"], journal["deviated"]) == ("completed", False)
    assert journal["steady_states"]["before"]["steady_state_met"]
    assert journal["steady_states"]["after"]["steady_state_met"]
    assert {one["status"] for one in journal["run"]} == {"succeeded"}
    outputs = {one["activity"]["name"]: one["output"] for one in journal["run"]}
    evidence = outputs["weights@0: weight.bitflip"]
    assert evidence["before"] != evidence["after"]
    assert journal["rollbacks"][0]["status"] == "succeeded"
    assert journal["tocsin"]["verdict"] == "pass"
    assert Path(journal["tocsin"]["report"]).is_file()


def test_our_violation_is_a_deviation_of_the_real_toolkit(chaos: Chaos, tmp_path: Path) -> None:
    """A silently wrong answer ends `chaos run` with 1, though every activity succeeded."""
    code, said = chaos("run", "--journal-path", "journal.json", _write(tmp_path, "corrupting"))
    assert code == 1, said
    journal = _journal(tmp_path)
    assert (journal["deviated"], journal["tocsin"]["verdict"]) == (True, "fail")
    assert {one["status"] for one in journal["run"]} == {"succeeded"}


def test_a_run_that_safety_stopped_interrupts_the_real_toolkit(
    chaos: Chaos, tmp_path: Path
) -> None:
    """It is healed though rollbacks are not played then, and it does not count as a success."""
    name = _write(tmp_path, "mute", safety={"max_duration": "1s"})
    code, said = chaos("run", "--journal-path", "journal.json", name)
    assert code == 1, said
    journal = _journal(tmp_path)
    assert journal["status"] == "interrupted"
    assert journal["tocsin"]["exit_code"] == 4
    assert "nothing is armed" in journal["tocsin"]["heal"][-1]
