"""The rendered files: fresh, in the subset that old and new servers read, and routed as meant."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.checkout import ROOT
from tests.dashboards.promql import evaluate, series
from tocsin.checker.window import worst_window
from tocsin.dashboards.contract import alerts
from tocsin.dashboards.promql import DRILL
from tocsin.dashboards.render.alertmanager import DEGRADE, PAGE, TICKET, alertmanager_file
from tocsin.dashboards.render.files import ALERTMANAGER, rendered, write
from tocsin.dashboards.render.grid import INTERVALS_S, SCENARIOS, grid_files
from tocsin.dashboards.render.options import Channel, RenderOptions, WecomApp
from tocsin.dashboards.render.prometheus import prometheus_file
from tocsin.dashboards.render.rules import rule_file

GENERATED = ROOT / "dashboards" / "generated"
APP = WecomApp(corp_id="corp", agent_id="7", secret="s3cret-words")


def _amlint(*words: str) -> subprocess.CompletedProcess[str]:
    # -W: the package's own deprecations are not ours to fail on
    command = [str(Path(sys.executable).with_name("amlint")), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", sorted(rendered(RenderOptions())))
def test_a_committed_file_is_what_the_declarations_say_now(name: str) -> None:
    """The chart takes these files; nobody edits them by hand and nobody forgets them."""
    text = (GENERATED / name).read_text(encoding="utf-8")
    assert text == rendered(RenderOptions())[name], "run `tocsin alerts render`"


def test_each_alert_is_one_rule_and_graver_ones_come_first() -> None:
    """No alert is lost on the way, and none is there twice."""
    groups = rule_file(RenderOptions())["groups"]
    names = [rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule]
    assert sorted(names) == sorted(unit.name for unit in alerts().values())
    assert [group["name"] for group in groups] == [
        "tocsin-recordings",
        "tocsin-p0",
        "tocsin-p1",
        "tocsin-p2",
        "tocsin-none",
    ]


def test_rules_use_only_what_prometheus_2_42_knows() -> None:
    """Debian 12 has that version; a newer field would make it refuse the whole file."""
    fields = {"alert", "record", "expr", "for", "keep_firing_for", "labels", "annotations"}
    for group in rule_file(RenderOptions())["groups"]:
        assert set(group) == {"name", "rules"}
        for rule in group["rules"]:
            assert set(rule) <= fields


def test_no_external_label_separates_the_rule_from_the_direct_push() -> None:
    """Alertmanager takes two alerts for one only if every label is the same."""
    assert "external_labels" not in prometheus_file(RenderOptions())["global"]


def test_a_drills_hubs_are_marked_and_others_are_not() -> None:
    """The label of a drill comes with the target."""
    options = RenderOptions(http_sd=(), targets=("a:1",), drill_targets=("b:1",))
    (scrape,) = prometheus_file(options)["scrape_configs"]
    assert scrape["static_configs"] == [
        {"targets": ["a:1"]},
        {"targets": ["b:1"], "labels": {DRILL: "true"}},
    ]
    assert "http_sd_configs" not in scrape


def test_the_interval_reaches_scrape_and_evaluation() -> None:
    """Tests and small places scrape every second; the timeout may not be longer than that."""
    settings = prometheus_file(RenderOptions(scrape_s=1, evaluation_s=1))["global"]
    assert settings == {
        "scrape_interval": "1s",
        "scrape_timeout": "1s",
        "evaluation_interval": "1s",
    }


@pytest.mark.parametrize("drills_page", [False, True])
@pytest.mark.parametrize("app", [None, APP])
def test_every_alert_reaches_whom_it_must(
    tmp_path: Path, drills_page: bool, app: WecomApp | None
) -> None:
    """The route table and the inhibitions, judged by amlint's copy of Alertmanager's matching."""
    channels = frozenset(Channel)
    options = RenderOptions(drills_page=drills_page, wecom_app=app, channels=channels)
    write(tmp_path, options)
    done = _amlint("test", str(tmp_path / ALERTMANAGER), str(tmp_path / "routes.test.yml"))
    assert done.returncode == 0, done.stdout
    assert f"{len(yaml.safe_load(rendered(options)['routes.test.yml']))} passed" in done.stdout


def test_the_routes_have_no_trap_that_amtool_overlooks(tmp_path: Path) -> None:
    """Unreachable routes, receivers without a way out, inhibitions that mute too much."""
    write(tmp_path, RenderOptions())
    config, rules = tmp_path / ALERTMANAGER, tmp_path / "rules.yml"
    done = _amlint("check", str(config), "--rules", str(rules), "--strict")
    assert done.returncode == 0, done.stdout


def test_a_broken_route_is_noticed(tmp_path: Path) -> None:
    """The judge can say no: with the first route a catch-all, pages no longer arrive."""
    write(tmp_path, RenderOptions())
    config: dict[str, Any] = yaml.safe_load((tmp_path / ALERTMANAGER).read_text())
    config["route"]["routes"].insert(0, {"receiver": TICKET})
    (tmp_path / ALERTMANAGER).write_text(yaml.safe_dump(config))
    done = _amlint("test", str(tmp_path / ALERTMANAGER), str(tmp_path / "routes.test.yml"))
    assert done.returncode != 0


def test_people_are_told_as_soon_as_the_priority_says() -> None:
    """P0 at once, P1 within ten seconds, P2 once a day at most; what nobody knows is a ticket."""
    route = alertmanager_file(RenderOptions())["route"]
    waits = {
        child["matchers"][0]: child.get("group_wait")
        for child in route["routes"]
        if child["receiver"] != DEGRADE
    }
    assert waits['priority="P0"'] == "0s"
    assert waits['priority="P1"'] == "10s"
    (archive,) = (child for child in route["routes"] if child["receiver"] == "p2-archive")
    assert archive["group_interval"] == "24h"
    assert route["receiver"] == TICKET


def test_a_page_that_knows_its_operator_also_degrades() -> None:
    """The second arm of the degradation, with the switchboard's token from a file."""
    receivers = {one["name"]: one for one in alertmanager_file(RenderOptions())["receivers"]}
    (hook,) = receivers[DEGRADE]["webhook_configs"]
    assert hook["url"].endswith("/degrade")
    assert hook["http_config"]["authorization"]["credentials_file"].endswith("/tocsin_token")
    assert hook["send_resolved"] is False


def test_secrets_come_from_files(tmp_path: Path) -> None:
    """Nothing that is committed or shown can hold one; the WeCom app's file is for one reader."""
    for text in rendered(RenderOptions()).values():
        for word in ("api_secret:", "routing_key:", "api_url:", "credentials:"):
            assert word not in text
    options = RenderOptions(wecom_app=APP, channels=frozenset(Channel))
    assert APP.secret not in repr(options)
    (tmp_path / ALERTMANAGER).write_text("an older file that anybody can read")
    write(tmp_path, options)
    assert (tmp_path / ALERTMANAGER).stat().st_mode & 0o777 == 0o600
    assert APP.secret in (tmp_path / ALERTMANAGER).read_text()


def test_a_channel_that_is_not_chosen_is_not_drawn() -> None:
    """A place without Slack has no receiver that fails all day."""
    config = alertmanager_file(RenderOptions(channels=frozenset({Channel.DINGTALK})))
    receivers = {one["name"]: one for one in config["receivers"]}
    assert set(receivers[PAGE]) == {"name"}
    assert [hook["url"] for hook in receivers[TICKET]["webhook_configs"]] == [
        "http://127.0.0.1:9465/alerts/dingtalk"
    ]


def test_with_the_relay_alone_no_channel_is_spoken_to_directly() -> None:
    """One file, the relay's, then says how people are reached."""
    config = alertmanager_file(RenderOptions(relay_only=True))
    receivers = {one["name"]: one for one in config["receivers"]}
    assert set(receivers[PAGE]) == {"name", "webhook_configs"}
    assert [hook["url"].rpartition("/")[2] for hook in receivers[PAGE]["webhook_configs"]] == [
        "wecom-robot",
        "slack",
        "pagerduty",
    ]


def test_the_grid_has_every_pair_of_intervals() -> None:
    """1, 5, 15 and 30 s against each other, and pairs that share no second."""
    pairs = {(scrape, evaluate) for scrape in (1, 5, 15, 30) for evaluate in (1, 5, 15, 30)}
    assert pairs < set(INTERVALS_S)
    tests = [test for file in grid_files(worst_window, "x").values() for test in file["tests"]]
    assert len(tests) == len(INTERVALS_S) * len(SCENARIOS)


def test_the_p0_rule_is_exact_on_the_whole_grid() -> None:
    """Ten never page and eleven always do, whenever it is scraped; promtool says so too (live)."""
    expr = alerts()["operator_failing"].expr
    wrong = []
    for evaluate_s, file in grid_files(worst_window, "x").items():
        for test in file["tests"]:
            interval_s = float(test["interval"].removesuffix("s"))
            known = [
                series(one["series"], one["values"], interval_s)
                for one in test["input_series"]
                if one["series"].startswith("tocsin_operator")
            ]
            expected = bool(test["promql_expr_test"][0]["exp_samples"])
            found = any(evaluate(expr, known, now_s) for now_s in range(0, 421, evaluate_s))
            if found != expected:
                wrong.append(test["name"])
    assert wrong == []
