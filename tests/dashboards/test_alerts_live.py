"""What Prometheus' and Alertmanager's own tools say of the rendered files."""

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tocsin.dashboards.contract import alerts
from tocsin.dashboards.render.alertmanager import PAGE
from tocsin.dashboards.render.files import (
    ALERTMANAGER,
    PROMETHEUS,
    ROUTE_TESTS,
    RULE_TESTS,
    RULES,
    write,
)
from tocsin.dashboards.render.options import Channel, RenderOptions, WecomApp
from tocsin.ray_jobs.commands.alert_files import route_commands, write_grid

pytestmark = pytest.mark.live

APP = WecomApp(corp_id="corp", agent_id="7", secret="s3cret-words")
OPTIONS = {
    "as committed": RenderOptions(),
    "every channel, drills page": RenderOptions(
        channels=frozenset(Channel), wecom_app=APP, drills_page=True, relay_token=True
    ),
    "no channel": RenderOptions(channels=frozenset(), http_sd=(), targets=("127.0.0.1:9464",)),
}


@pytest.fixture(params=OPTIONS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    write(tmp_path, OPTIONS[request.param])
    return tmp_path


def _run(*words: str) -> "subprocess.CompletedProcess[str]":
    assert shutil.which(words[0]), f"{words[0]} is missing: apt-get install prometheus-alertmanager"
    return subprocess.run(words, capture_output=True, text=True, check=False)


def _agreed(*words: str) -> str:
    done = _run(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_promtool_takes_rules_and_configuration_without_a_lint(folder: Path) -> None:
    """Every rule, and no duplicate."""
    said = _agreed("promtool", "check", "rules", "--lint=all", "--lint-fatal", str(folder / RULES))
    assert "rules found" in said
    _agreed("promtool", "check", "config", "--lint=all", str(folder / PROMETHEUS))


def test_promtool_agrees_with_every_case(tmp_path: Path) -> None:
    """Labels and annotations as well, filled in by Prometheus itself."""
    write(tmp_path, RenderOptions())
    _agreed("promtool", "test", "rules", str(tmp_path / RULE_TESTS))


def test_promtool_notices_a_broken_rule(tmp_path: Path) -> None:
    """With the limit moved by one, the case of its nearest miss is red."""
    write(tmp_path, RenderOptions())
    text = (tmp_path / RULES).read_text(encoding="utf-8")
    assert "> 10" in text
    (tmp_path / RULES).write_text(text.replace("> 10", "> 9"), encoding="utf-8")
    document = yaml.safe_load((tmp_path / RULE_TESTS).read_text(encoding="utf-8"))
    name = alerts()["operator_failing"].name
    document["tests"] = [test for test in document["tests"] if test["name"].startswith(name)]
    (tmp_path / RULE_TESTS).write_text(yaml.safe_dump(document), encoding="utf-8")
    done = _run("promtool", "test", "rules", str(tmp_path / RULE_TESTS))
    assert done.returncode == 1
    assert name in done.stdout + done.stderr


def test_the_p0_boundary_is_exact_at_every_interval(tmp_path: Path) -> None:
    """Ten never page and eleven always do: 1, 5, 15 and 30 s, and pairs that never align."""
    for path in write_grid(tmp_path):
        _agreed("promtool", "test", "rules", str(path))


def test_the_grid_sees_through_the_usual_rule(tmp_path: Path) -> None:
    """`increase(…[1m]) > 10` is what everybody writes first; the grid must find it wrong."""
    paths = write_grid(tmp_path)
    rule = tmp_path / "p0.rules.yml"
    exact = alerts()["operator_failing"].expr
    usual = "sum by (model, operator) (increase(tocsin_check_failures_total[1m])) > 10"
    rule.write_text(rule.read_text(encoding="utf-8").replace(exact, usual), encoding="utf-8")
    for path in paths:
        done = _run("promtool", "test", "rules", str(path))
        assert done.returncode == 1
        assert "exp:" in done.stdout + done.stderr


def test_amtool_takes_the_configuration_and_its_routes(folder: Path) -> None:
    """The same table that amlint judges, on the real matching."""
    config = str(folder / ALERTMANAGER)
    assert "SUCCESS" in _agreed("amtool", "check-config", config)
    rows = list(route_commands(folder / ROUTE_TESTS))
    assert len(rows) > len(alerts())
    for words in rows:
        _agreed("amtool", "config", "routes", "test", f"--config.file={config}", *words)


def test_amtool_notices_a_wrong_route(tmp_path: Path) -> None:
    """`--verify.receivers` can fail."""
    write(tmp_path, RenderOptions())
    config = f"--config.file={tmp_path / ALERTMANAGER}"
    words = ("amtool", "config", "routes", "test", config, f"--verify.receivers={PAGE}")
    assert _run(*words, "priority=P0").returncode == 0
    assert _run(*words, "priority=P1").returncode == 1
