"""Every alert: its words, its runbook, its expression, and the cases that it declares."""

import json
import re
import subprocess
import sys
from pathlib import Path

import promql_parser
import pytest

from tests.checkout import ROOT
from tests.dashboards.promql import firing, seconds, series
from tocsin.chaos.plan import make_plan
from tocsin.chaos.spec_file import load_experiment
from tocsin.checker.contract import crossing_checks, registry
from tocsin.core.metrics import CATALOGUE, CHECK_FAILURES
from tocsin.core.terms import CROSSING_CHECKS, Priority
from tocsin.dashboards.contract import Alert, Case, alerts, filled
from tocsin.dashboards.promql import DRILL, arrived
from tocsin.dashboards.recordings import RECORDINGS
from tocsin.dashboards.render.grid import SCENARIOS
from tocsin.dashboards.render.options import RenderOptions
from tocsin.dashboards.render.rules import annotations

ALL = [pytest.param(unit, id=unit.id) for unit in alerts().values()]
SILENT = [pytest.param(unit, id=unit.id) for unit in alerts().values() if unit.silent is not None]
TARGET_LABELS = {"job", "instance", DRILL}
"""Labels that Prometheus puts on every series of a target."""
OTHERS = {"up": {"job", "instance"}}
"""Series that are not ours, with their labels."""


_COMMANDS = """
import json
from typer.main import get_command
from tocsin.ray_jobs.cli import app
commands = get_command(app).commands
print(json.dumps({name: list(getattr(one, "commands", ())) for name, one in commands.items()}))
"""
"""In a process of its own: importing Ray warns."""


def _names(expr: str) -> set[str]:
    return set(re.findall(r"\b((?:tocsin[_:]\w[\w:]*)|up)\b(?=[{\[) \n]|$)", expr))


def _labels_of(name: str) -> set[str]:
    """The labels that a series of this name has."""
    for metric in CATALOGUE:
        if name in metric.series:
            return {*metric.labels, "le"}
    if name in {rule.record for rule in RECORDINGS}:
        return {"model", DRILL}
    return OTHERS[name]


def _fired(unit: Alert, case: Case) -> dict[tuple[tuple[str, str], ...], float]:
    known = [
        series(selector, values, seconds(case.interval)) for selector, values in case.series.items()
    ]
    needed = [(rule.record, rule.expr) for rule in RECORDINGS if rule.record in unit.expr]
    step_s = 15.0 if seconds(case.at) <= 7200 else 300.0
    return firing(unit.expr, unit.hold, unit.keep_firing, known, seconds(case.at), step_s, needed)


@pytest.mark.parametrize("unit", ALL)
def test_an_alert_fires_in_its_case(unit: Alert) -> None:
    """Exactly one alert, with the labels and the value that the case promises."""
    found = _fired(unit, unit.fires)
    assert list(found) == [tuple(sorted(unit.fires.labels.items()))]
    if "$value" in unit.summary:
        assert next(iter(found.values())) == pytest.approx(unit.fires.value)


@pytest.mark.parametrize("unit", SILENT)
def test_an_alert_stays_silent_at_its_nearest_miss(unit: Alert) -> None:
    """A rule that fires on everything would pass the other test."""
    assert unit.silent is not None
    assert _fired(unit, unit.silent) == {}


def test_only_the_watchdog_has_no_nearest_miss() -> None:
    """Everything else can be silent, and shows when."""
    assert [unit.id for unit in alerts().values() if unit.silent is None] == ["watchdog"]


@pytest.mark.parametrize("unit", ALL)
def test_an_expression_parses_and_asks_for_what_exists(unit: Alert) -> None:
    """A renamed metric or label would silently never fire."""
    promql_parser.parse(unit.expr)
    for name in _names(unit.expr):
        for matchers in re.findall(rf"\b{name}\{{([^}}]*)\}}", unit.expr):
            used = set(re.findall(r"(\w+)=", matchers))
            assert used <= _labels_of(name) | TARGET_LABELS
    for group in re.findall(r"(?:by|on) \(([^)]*)\)", unit.expr):
        wanted = {label.strip() for label in group.split(",")} - TARGET_LABELS
        assert any(wanted <= _labels_of(name) for name in _names(unit.expr))


@pytest.mark.parametrize("unit", ALL)
def test_an_aggregation_keeps_the_label_of_a_drill(unit: Alert) -> None:
    """Without it a drill would page, or a page in earnest could be taken for a drill."""
    for group in re.findall(r"by \(([^)]*)\)", unit.expr):
        assert DRILL in group


def test_every_series_that_a_rule_reads_is_in_the_catalogue() -> None:
    """Rules, panels and code speak of the same metrics."""
    for expr in [*(unit.expr for unit in alerts().values()), *(r.expr for r in RECORDINGS)]:
        for name in _names(expr):
            assert _labels_of(name)


@pytest.mark.parametrize("unit", ALL)
def test_an_alert_says_what_happened_and_what_to_do(unit: Alert) -> None:
    """Two languages, a runbook, a page to look at, a command to paste; nothing left unfilled."""
    said = annotations(unit, RenderOptions())
    assert set(said) == {"summary", "summary_zh", "runbook_url", "dashboard_url", "repro"}
    assert re.search(r"[\u4e00-\u9fff]", unit.summary_zh)
    assert re.search(r"[\u4e00-\u9fff]", unit.summary) is None
    assert said["runbook_url"].endswith(f"/docs/runbooks/{unit.id}.md")
    used = set(re.findall(r"\$labels\.(\w+)", unit.summary + unit.summary_zh))
    assert used <= set(unit.fires.labels) | {"instance"}
    if unit.priority is Priority.P0 and unit.names_operator:
        assert said["repro"] == "tocsin reproduce latest:{{ $labels.operator }}"
    for text in said.values():
        assert "{{" not in filled(text, unit.fires.labels, unit.fires.value)


def test_a_template_beyond_labels_and_value_is_refused() -> None:
    """What the direct push cannot fill in must not be in a summary."""
    with pytest.raises(ValueError, match="use only these two"):
        filled("{{ $value | humanize }}", {}, 1.0)


def test_severity_follows_priority() -> None:
    """People's own routes go by severity, ours by priority."""
    words = {(unit.labels["priority"], unit.labels["severity"]) for unit in alerts().values()}
    assert words == {("P0", "critical"), ("P1", "warning"), ("P2", "info"), ("none", "none")}


def test_one_request_seeing_anothers_data_is_what_the_checks_declare() -> None:
    """The rule may not see the checks; the list in between is held to them."""
    assert crossing_checks() == CROSSING_CHECKS
    for check in CROSSING_CHECKS:
        assert check.replace(".", "[.]") in alerts()["cross_request_data"].expr


@pytest.mark.parametrize(
    ("values", "counted"),
    [
        ("_x30 3x10", 3.0),  # born with 3
        ("5x20 7x20", 2.0),  # grown by 2
        ("5x60", None),  # as ever
        ("5x20 0x5 2x15", 2.0),  # restarted, and grew
        ("5x10 _x18 6x11", 1.0),  # grew while nobody looked for longer than the window
        ("5x10 _x20 5x9", None),  # nobody looked, and nothing happened
    ],
)
def test_what_arrived_is_counted_exactly(values: str, counted: float | None) -> None:
    """`increase()` misses the birth, and makes 2 into 2.1."""
    selector = (
        'tocsin_check_failures_total{model="m",operator="rope",layer="numerical",check="c",'
        'priority="P1"}'
    )
    expr = arrived(CHECK_FAILURES, "5m", ("operator",))
    found = firing(expr, "0s", "", [series(selector, values, 15)], 585, 15)
    value = found.get((("operator", "rope"),))
    if counted is None or value is None:
        assert value is counted
    elif "0x5" in values:  # after a restart only that it grew is certain
        assert value > 0
    else:
        assert value == counted


def test_the_grid_holds_both_sides_of_the_boundary() -> None:
    """A grid of which every scenario pages would pass with a rule that always fires."""
    assert sum(scenario.pages for scenario in SCENARIOS) >= 6
    assert sum(not scenario.pages for scenario in SCENARIOS) >= 6
    assert len({scenario.name for scenario in SCENARIOS}) == len(SCENARIOS)


def test_blind_is_told_within_four_minutes() -> None:
    """From the last check to the alert, at the slowest scrape in use."""
    unit = alerts()["blind"]
    tokens = series('tocsin_tokens_generated_total{model="m"}', "0+50x40", 30)
    checks = series(
        'tocsin_checks_total{model="m",operator="rope",layer="numerical",result="ok"}',
        "0+9x4 36x36",
        30,
    )
    last_s = 120
    assert firing(unit.expr, unit.hold, "", [tokens, checks], last_s + 240, 30)


@pytest.mark.parametrize("unit", ALL)
def test_a_runbook_has_its_five_sections(unit: Alert) -> None:
    """Whoever is woken up finds meaning, impact, diagnosis, mitigation and reproduction."""
    text = (ROOT / "docs" / "runbooks" / f"{unit.id}.md").read_text(encoding="utf-8")
    assert text.startswith(f"# {unit.name} (")
    assert unit.labels["priority"] in text.partition("\n")[0] or unit.priority is None
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    assert [section.partition("\n")[0] for section in sections] == [
        "Meaning",
        "Impact",
        "Diagnosis",
        "Mitigation",
        "Reproduction",
    ]
    for section in sections:
        assert len(section.split()) > 12, f"{unit.id}: {section!r} says too little"


def test_each_runbook_belongs_to_an_alert() -> None:
    """A page that no alert leads to is out of date."""
    pages = {path.stem for path in (ROOT / "docs" / "runbooks").glob("*.md")} - {"README"}
    assert pages == set(alerts())


def test_runbooks_speak_of_metrics_commands_and_checks_that_exist() -> None:
    """A command that fails at night costs more than none."""
    commands = json.loads(
        subprocess.run([sys.executable, "-c", _COMMANDS], capture_output=True, check=True).stdout
    )
    known = {name for metric in CATALOGUE for name in (metric.name, *metric.series)}
    known |= {rule.record for rule in RECORDINGS}
    for path in (ROOT / "docs" / "runbooks").glob("*.md"):
        text = path.read_text(encoding="utf-8")
        for name in re.findall(r"\btocsin_[a-z_]+\b|\btocsin:[\w:]+", text):
            assert name in known, f"{path.name}: {name}"
        for name in re.findall(r"`((?:numerical|memory|state|semantic)\.\w+)`", text):
            assert name in registry(), f"{path.name}: {name}"
        for words in re.findall(r"`tocsin ([a-z]+)(?: ([a-z]+))?", text):
            assert words[0] in commands, f"{path.name}: tocsin {words[0]}"
            if commands[words[0]]:
                assert words[1] in commands[words[0]], f"{path.name}: tocsin {' '.join(words)}"


def test_experiments_in_runbooks_are_well_formed(tmp_path: Path) -> None:
    """They are there to be pasted."""
    found = 0
    for path in (ROOT / "docs" / "runbooks").glob("*.md"):
        for block in re.findall(r"```yaml\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL):
            file = tmp_path / "drill.yaml"
            file.write_text(block, encoding="utf-8")
            assert make_plan(load_experiment(str(file))).occurrences
            found += 1
    assert found
