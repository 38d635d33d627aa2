"""`tocsin dashboards …` as a person types it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.dashboards.grafana.stub import TOKEN, stub_grafana
from tocsin.core.errors import EnvironmentFault
from tocsin.dashboards import coverage
from tocsin.dashboards.coverage import Missing
from tocsin.dashboards.panels import DASHBOARDS
from tocsin.ray_jobs.cli import app

RUNNER = CliRunner()


def test_all_dashboards_and_panels_are_listed() -> None:
    """Ids stand there to be copied, titles in both languages."""
    out = RUNNER.invoke(app, ["dashboards", "list"]).output
    for board in DASHBOARDS:
        assert f"{board.id} ({board.uid})" in out
        assert all(panel.id in out and panel.title_zh in out for panel in board.panels)


def test_files_are_rendered_with_the_addresses_given(tmp_path: Path) -> None:
    """Everything for Grafana's provisioning, below one folder, and each path is printed."""
    words = ["dashboards", "render", "--out", str(tmp_path), "--docs", "https://wiki.example"]
    done = RUNNER.invoke(app, words)
    assert done.exit_code == 0
    paths = [Path(line) for line in done.output.split()]
    assert len(paths) == 8
    assert all(path.is_file() for path in paths)
    model = json.loads((tmp_path / "dashboards" / "overview.json").read_text("utf-8"))
    assert "https://wiki.example" in [each.get("query") for each in model["templating"]["list"]]


def test_a_push_prints_what_it_did(tmp_path: Path) -> None:
    """One line an object; the second time, all unchanged."""
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    with stub_grafana() as stub:
        words = ["dashboards", "push", "--url", stub.url, "--token-file", str(token)]
        first, second = RUNNER.invoke(app, words), RUNNER.invoke(app, words)
    assert first.exit_code == second.exit_code == 0
    assert first.output.count("created") == 8
    assert second.output.count("unchanged") == 8


def test_a_token_that_others_can_read_is_refused(tmp_path: Path) -> None:
    """And never leaves the machine."""
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o644)
    with stub_grafana() as stub:
        words = ["dashboards", "push", "--url", stub.url, "--token-file", str(token)]
        done = RUNNER.invoke(app, words)
        assert stub.asked == []
    assert done.exit_code == 64
    assert "chmod 600" in done.output
    assert TOKEN not in done.output


@pytest.mark.parametrize(("found", "code"), [((), 0), ((Missing("b", "p", "up", "no series"),), 1)])
def test_empty_panels_end_the_check_with_one(
    found: tuple[Missing, ...], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For scripts the exit code, for people a line for each."""
    monkeypatch.setattr(coverage, "missing", lambda *_args, **_words: found)
    done = RUNNER.invoke(app, ["dashboards", "check", "http://prometheus:9090"])
    assert done.exit_code == code
    assert ("b/p: no series: up" in done.output) == bool(found)


def test_no_prometheus_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a traceback, and not the exit code of an empty panel."""

    def nobody(*_args: object, **_words: object) -> None:
        raise EnvironmentFault("coverage: http://x does not answer")

    monkeypatch.setattr(coverage, "missing", nobody)
    done = RUNNER.invoke(app, ["dashboards", "check"])
    assert done.exit_code == 3
    assert "does not answer" in done.output
