"""The command's exit codes are those of a chaos run, and its errors one line."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tocsin.chaos.scale import __main__ as command
from tocsin.chaos.scale.check import REPORT


def call(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(command.app, list(words))
    return result.exit_code, result.output


def test_a_clean_replay_passes_and_a_sinful_one_does_not(tmp_path: Path) -> None:
    assert call("generate", "200", str(tmp_path / "clean"))[0] == 0
    code, said = call("check", str(tmp_path / "clean"), "--jobs", "0")
    assert (code, "200 requests" in said) == (0, True)
    assert json.loads((tmp_path / "clean" / REPORT).read_text())["verdict"] == "pass"
    call("generate", "200", str(tmp_path / "sinful"), "--sins", "3")
    assert call("check", str(tmp_path / "sinful"), "--jobs", "0")[0] == 1


def test_set_aside_makes_a_torn_history_readable_for_all(tmp_path: Path) -> None:
    call("generate", "50", str(tmp_path))
    torn = tmp_path / "history.parquet" / "0-000000.parquet"
    torn.write_bytes(torn.read_bytes()[:-1])
    code, said = call("check", str(tmp_path), "--jobs", "0", "--set-aside")
    assert code == 2
    assert "history.parquet/0-000000.parquet: has" in said
    assert not torn.exists()


def test_the_selftest_says_how_many_sins_were_caught(tmp_path: Path) -> None:
    code, said = call("selftest", "100", "--jobs", "0", "--folder", str(tmp_path))
    assert code == 0
    assert "0 false in 8" in said


def test_a_folder_without_a_run_ends_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["scale", "check", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        command.main()
    assert ended.value.code == 64
    assert capsys.readouterr().err.count("\n") == 1
