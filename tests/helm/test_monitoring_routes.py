"""Each alert reaches its people through the AlertmanagerConfig, however the operator holds it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.helm.monitoring_routes import (
    OURS,
    STRATEGIES,
    built,
    config,
    in_earnest,
    judged,
    rows,
    without,
)
from tocsin.core.errors import SpecError
from tocsin.dashboards.contract import alerts
from tocsin.dashboards.render.alertmanager import alertmanager_file
from tocsin.dashboards.render.options import RenderOptions
from tocsin.helm.gate.render import merged as over
from tocsin.helm.gate.render import render
from tocsin.helm.monitoring.examples import EVERYTHING, RELAY_ELSEWHERE, TOLD
from tocsin.helm.monitoring.merge import KUBE_PROMETHEUS_STACK
from tocsin.helm.monitoring.routes import matcher

DRILLS_STAY: Mapping[str, Any] = over(
    EVERYTHING, {"monitoring": {"alertmanagerConfig": {"drillsPage": False}}}
)
NO_DEGRADE: Mapping[str, Any] = over(
    EVERYTHING, {"monitoring": {"alertmanagerConfig": {"degrade": {"enabled": False}}}}
)


@pytest.mark.parametrize("how", STRATEGIES)
@pytest.mark.parametrize("drills_page", [False, True])
def test_every_alert_reaches_its_receiver_and_is_muted_by_its_betters_alone(
    tmp_path: Path, how: str, drills_page: bool
) -> None:
    """All rows of the declared table, under each strategy of the operator, and never `null`."""
    values = EVERYTHING if drills_page else DRILLS_STAY
    document = built(config(values), **STRATEGIES[how])
    table = rows(drills_page=drills_page)
    done = judged(tmp_path, document, table)
    assert done.returncode == 0, done.stdout
    assert f"{len(table)} passed" in done.stdout


@pytest.mark.parametrize("label", ["namespace", "release"])
def test_without_the_label_every_alert_is_lost(tmp_path: Path, label: str) -> None:
    """The nearest miss: rules that aggregate the namespace away reach the root's `null`."""
    document = built(config())
    lost = without(in_earnest(rows()), label)
    done = judged(tmp_path, document, lost)
    assert done.returncode != 0
    for row in lost:
        row["expect"] = ["null"]
    done = judged(tmp_path, document, lost)
    assert done.returncode == 0, done.stdout
    assert f"{len(alerts())} passed" in done.stdout


def test_two_releases_in_one_namespace_keep_their_alerts_apart(tmp_path: Path) -> None:
    """The operator holds both to the namespace; the release is ours to tell."""
    document = built(config(), config(release="demo-2"))
    here = in_earnest(rows())
    there = [
        {
            **row,
            "labels": {**row["labels"], "release": "demo-2"},
            "expect": [one.replace("/demo-tocsin/", "/demo-2-tocsin/") for one in row["expect"]],
        }
        for row in here
    ]
    done = judged(tmp_path, document, [*here, *there])
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("how", STRATEGIES)
def test_alerts_of_others_in_the_namespace_are_not_ours(tmp_path: Path, how: str) -> None:
    """They go where the main configuration sends them, also when they name our release."""
    labels = {"namespace": "123", "severity": "critical", "priority": "P0"}
    table = [
        {"name": "a stranger", "labels": {**labels, "alertname": "Other"}, "expect": ["null"]},
        {
            "name": "a stranger with our release",
            "labels": {**labels, "alertname": "Other", "release": "demo"},
            "expect": ["null"],
        },
        {
            "name": "ours elsewhere",
            "labels": {**labels, "alertname": "TocsinStalled", "namespace": "b", "release": "demo"},
            "expect": ["null"],
        },
    ]
    done = judged(tmp_path, built(config(), **STRATEGIES[how]), table)
    assert done.returncode == 0, done.stdout


def test_a_page_of_one_release_mutes_no_ticket_of_another(tmp_path: Path) -> None:
    """Inhibitions are held to namespace and release on both sides, without the operator's help."""
    document = built(config(), **STRATEGIES["None"])
    page = {
        "alertname": "TocsinOperatorFailing",
        "namespace": "123",
        "release": "demo",
        "priority": "P0",
        "severity": "critical",
        "model": "m",
        "operator": "rope",
    }
    ticket = {**page, "alertname": "TocsinStateFailure", "priority": "P1", "severity": "warning"}
    table = [
        {"name": "own", "labels": ticket, "firing": [page], "inhibited": True},
        {
            "name": "other release",
            "labels": {**ticket, "release": "demo-2"},
            "firing": [page],
            "inhibited": False,
        },
        {
            "name": "other namespace",
            "labels": {**ticket, "namespace": "b"},
            "firing": [page],
            "inhibited": False,
        },
    ]
    done = judged(tmp_path, document, table)
    assert done.returncode == 0, done.stdout


def _plain(route: Mapping[str, Any]) -> dict[str, Any]:
    """A route of the AlertmanagerConfig in Alertmanager's words, without the release."""
    names = {
        "groupBy": "group_by",
        "groupWait": "group_wait",
        "groupInterval": "group_interval",
        "repeatInterval": "repeat_interval",
    }
    made = {names.get(name, name): value for name, value in route.items()}
    if "group_by" in made:
        assert made["group_by"][:2] == ["namespace", "release"]
        made["group_by"] = made["group_by"][2:]
    if "matchers" in made:
        made["matchers"] = [f'{m["name"]}{m["matchType"]}"{m["value"]}"' for m in made["matchers"]]
    if made.get("continue") is False:
        del made["continue"]
    return made


@pytest.mark.parametrize("drills_page", [False, True])
def test_the_tree_is_the_declared_one(drills_page: bool) -> None:
    """Who is told of what, and how soon, is said once: in dashboards/render/alertmanager.py."""
    declared = alertmanager_file(RenderOptions(drills_page=drills_page))["route"]
    route = config(EVERYTHING if drills_page else DRILLS_STAY)["spec"]["route"]
    assert [_plain(one) for one in route["routes"]] == declared["routes"]
    top = _plain({name: value for name, value in route.items() if name != "routes"})
    assert top.pop("matchers") == ['namespace="123"', 'release="demo"', 'alertname=~"Tocsin.+"']
    assert top == {name: value for name, value in declared.items() if name != "routes"}


def test_without_the_service_token_nothing_degrades_and_pages_still_go_out(tmp_path: Path) -> None:
    """The route is left out as a whole; a receiver without a way out would look like one."""
    found = config(NO_DEGRADE)
    assert "degrade" not in str(found)
    table = [
        {**row, "expect": [name for name in row["expect"] if not name.endswith("/degrade")]}
        for row in in_earnest(rows())
    ]
    done = judged(tmp_path, built(found), table)
    assert done.returncode == 0, done.stdout


def test_secrets_are_named_and_never_held() -> None:
    """Every address and key that is one comes from a Secret of the user's."""
    spec = config()["spec"]
    refs = {
        (ref["name"], ref["key"])
        for receiver in spec["receivers"]
        for channel in receiver.values()
        if isinstance(channel, list)
        for one in channel
        for ref in (
            one.get("urlSecret"),
            one.get("routingKey"),
            one.get("apiURL"),
            one.get("authPassword"),
            one.get("httpConfig", {}).get("authorization", {}).get("credentials"),
        )
        if ref
    }
    assert {("service", "bearer"), ("relay-token", "bearer")} <= refs
    for kind in ("page", "ticket", "archive", "drill", "deadman"):
        assert {name for name, _ in refs if name.startswith(f"{kind}-")} == {
            f"{kind}-{way}" for way in ("webhook", "pagerduty", "slack", "mail")
        }


def test_messages_are_templates_of_alertmanager_not_of_helm() -> None:
    """Braces survive, and say what the declared configuration says."""
    (page,) = (one for one in config()["spec"]["receivers"] if one["name"] == "p0-page")
    declared = {one["name"]: one for one in alertmanager_file(RenderOptions())["receivers"]}
    (slack,) = declared["p0-page"]["slack_configs"]
    (ours,) = page["slackConfigs"]
    assert (ours["title"], ours["text"]) == (slack["title"], slack["text"])
    (pager,) = declared["p0-page"]["pagerduty_configs"]
    (ours,) = page["pagerdutyConfigs"]
    assert {pair["key"]: pair["value"] for pair in ours["details"]} == pager["details"]
    assert (ours["description"], ours["severity"]) == (pager["description"], pager["severity"])


def test_a_relay_elsewhere_is_called_with_its_token() -> None:
    """The relay need not be this release's."""
    (page,) = (
        one for one in config(RELAY_ELSEWHERE)["spec"]["receivers"] if one["name"] == "p0-page"
    )
    (hook,) = page["webhookConfigs"]
    assert hook["url"] == "https://relay.example/alerts/robot"
    assert hook["httpConfig"]["authorization"]["credentials"] == {"name": "relay", "key": "token"}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"receivers": {"page": {"pagerdutySecret": {"name": ""}}}}, r"receivers\.page: found no"),
        ({"receivers": {"ticket": {"webhookSecret": {"name": ""}}}}, r"receivers\.ticket: found"),
        ({"receivers": {"drill": {"relay": "drill"}}}, "and there is no relay"),
        ({"receivers": {"page": {"email": {"to": "a@b.c", "username": "u"}}}}, "expected both"),
    ],
)
def test_a_configuration_that_tells_nobody_is_refused(change: dict[str, Any], says: str) -> None:
    """Found at render time, not by a silent night."""
    values = over(TOLD, {"monitoring": {"alertmanagerConfig": change}})
    with pytest.raises(SpecError, match=says):
        render(values)


def test_degrading_needs_the_token() -> None:
    """POST /degrade answers 401 without one: the second arm would be missing unnoticed."""
    values = {name: part for name, part in TOLD.items() if name != "token"}
    with pytest.raises(SpecError, match=r"degrade: found no token\.name"):
        render(values)


def test_the_merge_is_the_operators() -> None:
    """Prefixed names, our route before the main ones, passing on, the namespace on every rule."""
    document = built(config(TOLD))
    first, *others = document["route"]["routes"]
    assert first["receiver"] == f"{OURS}/p1-ticket"
    assert first["continue"] is True
    assert first["matchers"].count('namespace="123"') == 2  # ours, and the operator's on top
    assert others == KUBE_PROMETHEUS_STACK["route"]["routes"]
    assert document["route"]["receiver"] == "null"
    ours = document["inhibit_rules"][len(KUBE_PROMETHEUS_STACK["inhibit_rules"]) :]
    for rule in ours:
        for side in ("source_matchers", "target_matchers"):
            assert rule[side].count('namespace="123"') == 1


@pytest.mark.parametrize("text", ['a="b"', 'a=~"b|c"', 'a!="b"', 'a!~"b"'])
def test_a_matcher_is_read_whole(text: str) -> None:
    """Name, operator, value."""
    found = matcher(text)
    assert f'{found["name"]}{found["matchType"]}"{found["value"]}"' == text
