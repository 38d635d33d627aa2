"""From a fault to a page and on to a failing test: on real Prometheus, Alertmanager and Ray."""

import subprocess
from collections.abc import Iterator

import pytest

from tests.live.walk import TOCSIN, Walk, reproductions, walked

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walk]:
    with walked(tmp_path_factory.mktemp("walk")) as seen:
        yield seen


def test_the_drill_itself_passes_and_every_fault_fired(walk: Walk) -> None:
    """Nothing below means anything unless the faults were really there, and contained."""
    assert walk.code == 0, walk.said[-3000:]
    faults = walk.verdict()["faults"]
    assert all(one["fired"] == one["planned"] == one["detected"] for one in faults)


def test_each_incident_was_alerted_of_at_the_route_of_its_priority(walk: Walk) -> None:
    """The run has read its alerts back from Alertmanager and judged them: a rule for each fault."""
    (routing,) = (one for one in walk.verdict()["properties"] if one["id"] == "alert.routing")
    assert routing["verdict"] == "pass"
    assert routing["checked"] >= 10


@pytest.mark.parametrize("name", ["TocsinOperatorFailing", "TocsinCrossRequestData"])
def test_a_p0_goes_from_the_fault_over_metric_and_rule_to_the_robot(walk: Walk, name: str) -> None:
    """Each station knows of it: Prometheus, Alertmanager, and a message in Chinese."""
    assert walk.metric_s > 0
    assert walk.alerts[name]["labels"]["priority"] == "P0"
    assert walk.alerts[name]["labels"]["chaos"] == "true"
    assert [message for message in walk.robot.about(name) if message.path == "/wecom-robot"]


def test_who_is_paged_runs_the_failure_again(walk: Walk) -> None:
    """The command in the message writes a test that fails with the recorded check."""
    pages = walk.robot.about("TocsinOperatorFailing")
    commands = [one for message in pages for one in reproductions(message.text)]
    assert commands, [message.text for message in pages]
    done = subprocess.run(
        [str(TOCSIN), "reproduce", commands[-1], "--run", "--out", str(walk.folder / "again")],
        cwd=walk.folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_panel_of_any_dashboard_stays_empty(walk: Walk) -> None:
    """A renamed metric or a label that nobody sets shows here, not on the night it is needed."""
    assert walk.empty == ()


def test_a_drill_never_pages_as_production_does(walk: Walk) -> None:
    """Every alert of the run carries the mark by which the routes tell drills apart."""
    exempt = {"TocsinWatchdog", "TocsinNoReports"}  # neither has a target to take the mark from
    unmarked = [
        name
        for name, alert in walk.alerts.items()
        if alert["labels"].get("chaos") != "true" and name not in exempt
    ]
    assert unmarked == []


def test_the_live_page_showed_the_failure_with_its_command(walk: Walk) -> None:
    """Those who have neither Prometheus nor Grafana see the same, and its address was printed."""
    assert "/live" in walk.said
    assert "tocsin reproduce " in walk.live_page


def test_the_run_keeps_its_reproductions(walk: Walk) -> None:
    """A report that is opened next week still leads to a test that fails."""
    tests = list((walk.run_dir / "repro").rglob("test_*.py"))
    assert tests
    assert list((walk.run_dir / "logs" / "failures").glob("*.jsonl*"))
