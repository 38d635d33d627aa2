"""Whole runs against a system that tells everything: what it does beside its answers is judged."""

from pathlib import Path
from typing import Any

import pytest

from tests.chaos.experiments import small
from tests.chaos.fake_system import FakeSystem, Misbehaviour
from tocsin.chaos.contract import properties
from tocsin.chaos.run import check, run
from tocsin.chaos.spec_file import parse_experiment
from tocsin.chaos.store import load_case, read_verdict
from tocsin.core.history import EventKind

CONDITIONAL = sorted(name for name, unit in properties().items() if unit.conditional)
NOTHING_TO_TELL = ("overload.fair", "degraded.labelled", "exec.idempotent")
"""The small run sheds nothing, degrades nothing and sends nothing twice."""
TOLD = [name for name in CONDITIONAL if name not in NOTHING_TO_TELL]


def conduct(
    tmp_path: Path, system: FakeSystem, checks: list[str], **changes: Any
) -> tuple[int, dict[str, dict[str, Any]], Path]:
    """Run the small experiment with some properties; returns exit code, verdicts and folder."""
    spec = parse_experiment(small(checks=[{"id": name} for name in checks], **changes))
    code = run(spec, system, tmp_path)
    run_dir = (tmp_path / "latest").resolve()
    return code, {one["id"]: one for one in read_verdict(run_dir)["properties"]}, run_dir


def test_a_system_that_tells_everything_passes_every_property_of_it(tmp_path: Path) -> None:
    """Named in the experiment, none of them is vacuous; read back from disk, the same."""
    code, found, run_dir = conduct(tmp_path, FakeSystem(), [*TOLD, "reaction.as_expected"])
    assert {name: one["verdict"] for name, one in found.items()} == dict.fromkeys(found, "pass")
    assert (code, check(run_dir)) == (0, 0)
    kinds = {event.kind for event in load_case(run_dir).events}
    assert {
        EventKind.HEALTH,
        EventKind.RESOURCES,
        EventKind.PAGES_FREED,
        EventKind.ALERT_SENT,
        EventKind.LOGITS,
    } <= kinds


def test_without_checks_all_are_judged_and_the_vacuous_conditional_ones_do_not_count(
    tmp_path: Path,
) -> None:
    """A system that tells nothing beyond its duty, and degrades nothing, is judged as before."""

    class Reserved(FakeSystem):
        health = None  # type: ignore[assignment]

    told = Misbehaviour(holds_cancelled=True, alerts_nobody=True)
    system = Reserved(wrong=told, observes=())
    code, found, _ = conduct(tmp_path, system, [])
    vacuous = {name for name, one in found.items() if one["verdict"] == "vacuous"}
    assert "degraded.labelled" in vacuous
    assert {"health.honesty", "alert.routing", "abort.effective", "overload.fair"} <= vacuous
    assert {one["verdict"] for one in found.values()} == {"pass", "vacuous"}
    assert code == 0
    assert read_verdict((tmp_path / "latest").resolve())["reasons"] == []


@pytest.mark.parametrize(
    ("wrong", "violated"),
    [
        (Misbehaviour(leaks_files=10), "resource.no_leak"),
        (Misbehaviour(alerts_nobody=True), "alert.routing"),
        (Misbehaviour(wrong_logits=True), "golden.logits"),
    ],
)
def test_what_a_system_does_wrong_beside_its_answers_is_found(
    tmp_path: Path, wrong: Misbehaviour, violated: str
) -> None:
    """Every answer is golden, and the run fails all the same."""
    code, found, _ = conduct(tmp_path, FakeSystem(wrong=wrong), [*TOLD, "golden.tokens"])
    assert code == 1
    assert [name for name, one in found.items() if one["verdict"] == "fail"] == [violated]


def test_a_health_page_that_lies_while_everything_hangs_is_found(tmp_path: Path) -> None:
    """Every request waits, the page says ok; the slack of the check is a second here."""
    wrong = Misbehaviour(mute_after=10, lies_about_health=True)
    checks = [{"id": "health.honesty", "params": {"slack_s": 0.5}}]
    spec = parse_experiment(small(checks=checks, safety={"max_duration": "3s"}, faults=[]))
    run(spec, FakeSystem(wrong=wrong), tmp_path)
    (found,) = read_verdict((tmp_path / "latest").resolve())["properties"]
    assert found["verdict"] == "fail"
    assert "/health" in found["first"]
