"""What promtool and amtool say of the rendered chart, beside another release."""

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helm.monitoring_routes import STRATEGIES, built, config, in_earnest, rows
from tests.helm.monitoring_rules import (
    BESIDE,
    ELSEWHERE,
    HERE,
    by_alert,
    expected,
    groups,
    of,
    promtool_tests,
)
from tocsin.dashboards.contract import Case, alerts
from tocsin.helm.monitoring.scope import inserted

pytestmark = pytest.mark.live

ARMED: Mapping[str, Any] = {
    "worker": {"chaosTarget": True},
    "chaos": {"enabled": True, "dryRun": False},
    "monitoring": {"prometheusRule": {"enabled": True}},
}


def _promtool(*words: str) -> str:
    done = subprocess.run(("promtool", *words), capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def _tested(folder: Path, found: list[dict[str, Any]], tests: Mapping[str, Any]) -> str:
    """What promtool has against the rules, or nothing."""
    (folder / "rules.yml").write_text(yaml.safe_dump({"groups": found}, allow_unicode=True))
    (folder / "tests.yml").write_text(yaml.safe_dump(dict(tests), allow_unicode=True))
    refused = _promtool("check", "rules", "--lint=all", "--lint-fatal", str(folder / "rules.yml"))
    return refused or _promtool("test", "rules", str(folder / "tests.yml"))


@pytest.mark.parametrize(
    ("drills", "slow"), [("running", False), ("running", True), ("never", False)]
)
def test_every_case_holds_for_this_release_alone(tmp_path: Path, drills: str, slow: bool) -> None:
    """A healthy release of the same name elsewhere does not mask, a broken one does not fire."""
    found = groups(drills=drills)
    assert _tested(tmp_path, found, promtool_tests(by_alert(found), slow=slow)) == ""


def test_without_the_scope_the_other_release_is_heard(tmp_path: Path) -> None:
    """The neighbours in these tests do count: rules that ask everybody are red."""
    found = groups()
    text = yaml.safe_dump(found, allow_unicode=True)
    for label, value in HERE.items():
        text = text.replace(f'{label}="{value}"', f'{label}=~".*"')
    said = _tested(tmp_path, yaml.safe_load(text), promtool_tests(by_alert(found)))
    assert "FAILED" in said


def test_while_an_experiment_runs_every_alert_is_a_drills(tmp_path: Path) -> None:
    """The mark is made by the rule, as soon as the driver's own metric says so."""
    found = groups()
    tests = promtool_tests(by_alert(found), running=True)
    assert _tested(tmp_path, found, tests) == ""


def test_while_chaos_is_armed_every_alert_is_a_drills(tmp_path: Path) -> None:
    """With drills=armed, without any experiment."""
    found = groups(ARMED, drills="armed")
    assert _tested(tmp_path, found, promtool_tests(by_alert(found), drill=True)) == ""


def _times(*steps: tuple[dict[str, str], str, list[dict[str, Any]]], name: str) -> dict[str, Any]:
    """One test of TocsinCrossRequestData that looks several times."""
    series = {key: text for one, _, _ in steps for key, text in one.items()}
    return {
        "interval": "15s",
        "input_series": [{"series": key, "values": text} for key, text in series.items()],
        "alert_rule_test": [
            {"eval_time": at, "alertname": name, "exp_alerts": known} for _, at, known in steps
        ],
    }


def test_the_mark_comes_and_goes_with_the_experiment_and_spares_what_stood_before(
    tmp_path: Path,
) -> None:
    """Arming and disarming change no series, so they report nothing old; a page stays a page."""
    unit, found = alerts()["cross_request_data"], groups()
    rule = by_alert(found)[unit.name]
    metric = next(iter(unit.fires.series))
    runs = inserted('tocsin_chaos_running{pod="driver"}', HERE)

    def known(value: float, *, drill: bool) -> list[dict[str, Any]]:
        case = Case({}, "", unit.fires.labels, value)
        return [expected(unit, case, rule, drill=drill)]

    def counts(values: str) -> dict[str, str]:
        return of(Case({metric: values}, ""), HERE)

    tests = [
        # 40 samples are 10 minutes. The experiment runs from minute 10 to 20.
        _times(
            ({**counts("3x59 50x200"), runs: "_x40 1x40 stale"}, "9m", []),
            ({}, "12m", []),  # three old signs are not news
            ({}, "16m", known(47, drill=True)),
            ({}, "21m", []),  # five minutes after the last sign
            ({}, "50m", []),  # nor are they when nobody runs anything any more
            name=unit.name,
        ),
        # The experiment ends a minute after the failure: for seven minutes it is still its own.
        _times(
            ({**counts("3x55 50x200"), runs: "_x40 1x20 stale"}, "16m", known(47, drill=True)),
            name=unit.name,
        ),
        # What stood in earnest before the experiment began stays in earnest while it runs.
        _times(
            ({**counts("3x38 4x20 9x200"), runs: "_x40 1x60"}, "9m45s", known(1, drill=False)),
            ({}, "12m", known(1, drill=False)),
            ({}, "16m", known(5, drill=False)),
            name=unit.name,
        ),
        # A failure of after the experiment's patience is in earnest.
        _times(
            ({**counts("3x119 7x60"), runs: "_x40 1x40 stale"}, "31m", known(4, drill=False)),
            name=unit.name,
        ),
        # An experiment of somebody else changes nothing.
        _times(
            (
                {
                    **counts("3x59 50x200"),
                    inserted("tocsin_chaos_running", ELSEWHERE): "1x200",
                    inserted("tocsin_chaos_running", BESIDE): "1x200",
                },
                "16m",
                known(47, drill=False),
            ),
            name=unit.name,
        ),
    ]
    document = {"rule_files": ["rules.yml"], "evaluation_interval": "15s", "tests": tests}
    assert _tested(tmp_path, found, document) == ""


def test_nobody_reports_is_told_though_a_neighbour_does(tmp_path: Path) -> None:
    """`absent()` asks about this release: another's `up` does not stand in for it."""
    unit, found = alerts()["no_reports"], groups()
    rule = by_alert(found)[unit.name]
    series = {
        inserted('up{job="tocsin", instance="a"}', where): "1x40" for where in (ELSEWHERE, BESIDE)
    }
    absent = expected(unit, Case({}, "", {}), rule, drill=False)
    pulled = {inserted('up{job="tocsin", component="head", instance="h"}', HERE): "0x12 1x40"}
    tests = [
        _times((series, "5m", [absent]), name=unit.name),
        # While the first image is pulled nobody reports, and it is nobody in particular.
        _times(({**series, **pulled}, "2m30s", [absent]), ({}, "5m", []), name=unit.name),
    ]
    document = {"rule_files": ["rules.yml"], "evaluation_interval": "15s", "tests": tests}
    assert _tested(tmp_path, found, document) == ""


def test_a_pod_without_a_replica_may_be_silent_and_one_that_served_may_not(tmp_path: Path) -> None:
    """An idle worker has no hub, a driver answers only while it strikes: neither is an outage."""
    unit, found = alerts()["no_reports"], groups()
    rule = by_alert(found)[unit.name]

    def series(pod: str, component: str, up: str, replica: str = "") -> dict[str, str]:
        labels = {**HERE, "instance": pod}
        made = {inserted("up", {**labels, "job": "tocsin", "component": component}): up}
        if replica:
            made[inserted('tocsin_replica_up{model="m",replica="r"}', labels)] = replica
        return made

    told = [
        expected(unit, Case({}, "", {"instance": pod}), rule, drill=False)
        for pod in ("head", "relay", "served")
    ]
    quiet = {
        **series("idle", "worker", "0x200"),
        **series("next-head", "head", "0x200"),  # its image is pulled, the old one serves
        # Nobody lived there for five minutes before the hub left.
        **series("left", "worker", "1x60 0x140", "1x40 stale"),
        **series("lost", "worker", "1x60 0x140", "1x30 0x20 stale"),
        **series("driver", "chaos", "0x8 1x20 0x172"),
        **series("well", "worker", "1x200", "1x200"),
    }
    loud = {
        **series("head", "head", "1x60 0x140"),
        **series("relay", "relay", "1x60 0x140"),
        **series("served", "worker", "1x60 0x140", "1x60 stale"),
    }
    test = _times(
        ({**quiet, **loud}, "16m", []), ({}, "18m", told), ({}, "45m", told), name=unit.name
    )
    document = {"rule_files": ["rules.yml"], "evaluation_interval": "15s", "tests": [test]}
    assert _tested(tmp_path, found, document) == ""


def _routed(config_file: Path, row: Mapping[str, Any], receivers: list[str]) -> bool:
    """Whether amtool finds that an alert reaches exactly these."""
    labels = [f"{name}={value}" for name, value in row["labels"].items()]
    words = ("amtool", "config", "routes", "test", f"--config.file={config_file}")
    done = subprocess.run(
        (*words, f"--verify.receivers={','.join(receivers)}", *labels),
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode == 0


@pytest.mark.parametrize("how", STRATEGIES)
def test_amtool_takes_what_the_operator_makes_and_each_alert_reaches_its_receiver(
    tmp_path: Path, how: str
) -> None:
    """On Alertmanager's real matching, each alert in earnest and in a drill; never `null`."""
    path = tmp_path / "alertmanager.yml"
    path.write_text(yaml.safe_dump(built(config(), **STRATEGIES[how]), allow_unicode=True))
    words = ("amtool", "check-config", str(path))
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    table = [row for row in rows(drills_page=True) if "expect" in row]
    assert len(table) == 2 * len(alerts()) - 1
    for row in table:
        assert "null" not in row["expect"]
        assert _routed(path, row, row["expect"]), row


def test_amtool_loses_every_alert_whose_rule_names_no_namespace(tmp_path: Path) -> None:
    """The nearest miss, under the operator's default."""
    path = tmp_path / "alertmanager.yml"
    path.write_text(yaml.safe_dump(built(config()), allow_unicode=True))
    for row in in_earnest(rows()):
        labels = {name: text for name, text in row["labels"].items() if name != "namespace"}
        assert not _routed(path, {"labels": labels}, row["expect"])
        assert _routed(path, {"labels": labels}, ["null"])
