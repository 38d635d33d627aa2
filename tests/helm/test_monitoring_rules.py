"""The rendered rules: the declared ones, held to one release, with drills told from earnest."""

import re
from collections.abc import Mapping
from typing import Any

import promql_parser
import pytest

from tests.dashboards.promql import Series, firing, seconds
from tests.dashboards.promql import series as parsed
from tests.helm.monitoring_rules import (
    BESIDE,
    ELSEWHERE,
    HERE,
    QUICK_S,
    by_alert,
    experiment,
    groups,
    of,
    patience_s,
)
from tocsin.core.errors import ContractError
from tocsin.dashboards.contract import Alert, Case, alerts
from tocsin.dashboards.promql import DRILL
from tocsin.dashboards.recordings import RECORDINGS
from tocsin.helm.monitoring import presence
from tocsin.helm.monitoring.rules import FORMS, rules_of
from tocsin.helm.monitoring.scope import scoped, selectors, with_places

ALL = [pytest.param(unit, id=unit.id) for unit in alerts().values()]
QUICK = [
    pytest.param(unit, id=unit.id)
    for unit in alerts().values()
    if unit.silent is not None
    and max(seconds(unit.fires.at), seconds(unit.silent.at)) <= QUICK_S
    and unit.id != presence.ID  # asks in subqueries, which the evaluator does not know
]
ARMED: Mapping[str, Any] = {
    "worker": {"chaosTarget": True},
    "chaos": {"enabled": True, "dryRun": False},
    "monitoring": {"prometheusRule": {"enabled": True}},
}


def _known(case: Case, *others: tuple[Case, Mapping[str, str]]) -> list[Series]:
    """Series of this release and of others, as the evaluator takes them."""
    texts = of(case, HERE)
    for other, where in others:
        texts |= of(other, where)
    return [parsed(name, values, seconds(case.interval)) for name, values in texts.items()]


def _fires(unit: Alert, rule: Mapping[str, Any], case: Case, known: list[Series]) -> dict[Any, Any]:
    return firing(
        rule["expr"],
        unit.hold,
        unit.keep_firing,
        known,
        seconds(case.at),
        15.0,
        own={**rule["labels"], "alertname": unit.name},
    )


@pytest.mark.parametrize("drills", ["running", "armed", "never"])
def test_each_declared_alert_is_one_rule_that_names_its_release(drills: str) -> None:
    """Without labels.namespace an Alertmanager under an operator would route it to nobody."""
    rules = by_alert(groups(drills=drills))
    assert sorted(rules) == sorted(unit.name for unit in alerts().values())
    for unit in alerts().values():
        labels = rules[unit.name]["labels"]
        assert labels == {**unit.labels, **HERE}
        assert all(isinstance(value, str) for value in labels.values())
        assert rules[unit.name].get("for", "0s") == unit.hold
        assert rules[unit.name].get("keep_firing_for", "") == unit.keep_firing


@pytest.mark.parametrize("drills", ["running", "never"])
def test_every_series_that_a_rule_asks_for_is_this_releases(drills: str) -> None:
    """Recorded ones too: they carry the labels by which they are asked for."""
    held = [("=", label, value) for label, value in HERE.items()]
    for group in groups(drills=drills):
        for rule in group["rules"]:
            for name, matchers in selectors(rule["expr"]):
                assert set(held) <= set(matchers), f"{name} in {rule}"
            if "record" in rule:
                assert rule["labels"] == HERE


def test_the_scope_is_all_that_was_changed() -> None:
    """Taken out again, what is left is the declared expression, as the parser reads it."""
    scope = re.compile(r'namespace="123", release="demo"(, )?')

    def plain(expr: str) -> str:
        return str(promql_parser.parse(scope.sub("", expr)))

    rendered = groups(drills="never")
    rules = by_alert(rendered)
    for unit in alerts().values():
        expr = presence.pods_unread(unit) if unit.id == presence.ID else unit.expr
        assert plain(rules[unit.name]["expr"]) == str(promql_parser.parse(expr))
    recorded = {rule["record"]: rule["expr"] for rule in rendered[0]["rules"]}
    for one in RECORDINGS:
        assert plain(recorded[one.record]) == str(promql_parser.parse(one.expr))


@pytest.mark.parametrize(
    "expr",
    [
        "sum(node_load1)",
        "tocsin_checks_total or other",
        '{__name__=~"tocsin_.+"}',
        "up == up_total",
    ],
)
def test_a_series_that_the_scope_does_not_know_is_refused(expr: str) -> None:
    """A forgotten selector would mix releases without a word."""
    with pytest.raises(ContractError, match="scope: "):
        scoped(expr)


@pytest.mark.parametrize(
    ("expr", "known"),
    [
        ('a_up{job="up"} or up', None),
        ("sum by (instance) (up)", 'sum by (instance) (up{x="1"})'),
        ("up{} offset 5m", 'up{x="1"} offset 5m'),
        ('rate(tocsin_a{b=~"tocsin_a|up"}[5m])', 'rate(tocsin_a{x="1", b=~"tocsin_a|up"}[5m])'),
        ("tocsin:a:b > 1", 'tocsin:a:b{x="1"} > 1'),
        ("label_replace(up, 'a', 'up', '', '')", "label_replace(up{x=\"1\"}, 'a', 'up', '', '')"),
    ],
)
def test_labels_and_words_are_no_series(expr: str, known: str | None) -> None:
    """A name within a string or a grouping stays as it is."""
    if known is None:
        with pytest.raises(ContractError):
            scoped(expr, {"x": "1"})
    else:
        assert scoped(expr, {"x": "1"}) == known


@pytest.mark.parametrize("unit", QUICK)
def test_it_fires_for_this_release_and_stays_silent_for_others(unit: Alert) -> None:
    """What is well elsewhere does not mask, what is broken elsewhere does not fire."""
    assert unit.silent is not None
    rule = by_alert(groups())[unit.name]
    for case, other in ((unit.fires, unit.silent), (unit.silent, unit.fires)):
        known = _known(case, (other, ELSEWHERE), (other, BESIDE))
        found = _fires(unit, rule, case, known)
        assert [dict(labels) for labels in found] == ([case.labels] if case is unit.fires else [])
        if found:
            (value,) = found.values()
            assert value == pytest.approx(case.value or value)


@pytest.mark.parametrize("unit", [one for one in QUICK if one.values[0].priority is not None])
def test_while_an_experiment_runs_it_is_a_drills(unit: Alert) -> None:
    """The same alert with the mark; an experiment of somebody else does not count."""
    rule = by_alert(groups())[unit.name]
    for where, marked in ((HERE, True), (ELSEWHERE, False), (BESIDE, False)):
        runs = {
            name: parsed(name, values, seconds(unit.fires.interval))
            for name, values in experiment(where, unit.fires).items()
        }
        found = _fires(unit, rule, unit.fires, [*_known(unit.fires), *runs.values()])
        mark = {DRILL: "true"} if marked else {}
        assert [dict(labels) for labels in found] == [{**unit.fires.labels, **mark}]


def test_what_stood_before_the_experiment_stays_in_earnest() -> None:
    """A page does not turn into a drill's because somebody starts an experiment."""
    unit = alerts()["operator_failing"]
    rule = by_alert(groups())[unit.name]
    (metric,) = unit.fires.series
    case = Case({metric: "0x3 11x40"}, at="9m", labels=unit.fires.labels)
    runs = parsed('tocsin_chaos_running{namespace="123", release="demo"}', "_x12 1x30", 15.0)
    for known, mark in (([runs], {}), ([], {})):
        found = _fires(unit, rule, case, [*_known(case), *known])
        assert [dict(labels) for labels in found] == [{**unit.fires.labels, **mark}]
    late = Case({metric: "0x20 11x40"}, at="9m", labels=unit.fires.labels)
    found = _fires(unit, rule, late, [*_known(late), runs])
    assert [dict(labels) for labels in found] == [{**unit.fires.labels, DRILL: "true"}]


@pytest.mark.parametrize("unit", [one for one in ALL if one.values[0].priority is not None])
def test_an_experiment_is_remembered_for_as_long_as_the_rule_looks_back(unit: Alert) -> None:
    """Or its own failures would page minutes after it has ended."""
    spans = [
        (parsed_s, text)
        for text in re.findall(r"(?:\[|offset )(\d+[smhd])", unit.expr)
        if (parsed_s := seconds(text)) < seconds("1d")
    ]
    assert patience_s(unit) >= max([300.0, *(span_s + 60 for span_s, _ in spans)])
    assert patience_s(unit) <= seconds("7h")


def test_armed_marks_by_the_rules_label_and_only_while_chaos_may_strike() -> None:
    """Dry runs break nothing, so nothing of theirs is a drill's."""
    dry = {**ARMED, "chaos": {"enabled": True, "dryRun": True}}
    for values, marked in ((ARMED, True), (dry, False), ({**ARMED, "chaos": {}}, False)):
        for name, rule in by_alert(groups(values, drills="armed")).items():
            informs = rule["labels"]["priority"] == "none"
            assert (rule["labels"].get(DRILL) == "true") == (marked and not informs), name
    for drills in ("running", "never"):
        for rule in by_alert(groups(ARMED, drills=drills)).values():
            assert DRILL not in rule["labels"]


def test_prometheus_templates_survive_helm() -> None:
    """Summaries are filled in by Prometheus, word for word as declared."""
    rules = by_alert(groups())
    for unit in alerts().values():
        words = rules[unit.name]["annotations"]
        assert (words["summary"], words["summary_zh"]) == (unit.summary, unit.summary_zh)
        assert "__" not in "".join(words.values())


def test_an_alert_leads_to_the_service_the_runbook_and_a_command_to_paste() -> None:
    """By default to what the cluster itself shows; otherwise to the addresses that people use."""
    rule = by_alert(groups())["TocsinOperatorFailing"]["annotations"]
    inside = "http://demo-tocsin-head-svc.123.svc:8000"
    assert rule["runbook_url"] == f"{inside}/docs/runbooks/operator_failing.md"
    assert rule["dashboard_url"] == f"{inside}/live?operator={{{{ $labels.operator }}}}"
    assert "kubectl --namespace 123 exec $pod" in rule["repro"]
    assert "app.kubernetes.io/instance=demo" in rule["repro"]
    assert "tocsin reproduce latest:{{ $labels.operator }} " in rule["repro"]


def test_links_are_the_ones_that_were_given() -> None:
    """A trailing slash makes no double one; Grafana's take the place of the live page."""
    links = {
        "gatewayUrl": "https://model.example/",
        "docsUrl": "https://docs.example/t/",
        "grafanaUrl": "https://grafana.example/",
    }
    values = {"monitoring": {"prometheusRule": {"enabled": True}, "links": links}}
    rules = by_alert(groups(values))
    words = rules["TocsinOperatorFailing"]["annotations"]
    assert words["runbook_url"] == "https://docs.example/t/runbooks/operator_failing.md"
    assert re.fullmatch(
        r"https://grafana\.example/d/tocsin-operators-[0-9a-f]{8}"
        r"\?var-operator=\{\{ \$labels\.operator \}\}",
        words["dashboard_url"],
    )
    del links["grafanaUrl"]
    words = by_alert(groups(values))["TocsinOperatorFailing"]["annotations"]
    assert words["dashboard_url"].startswith("https://model.example/live?operator=")


def test_the_severity_of_what_waits_can_be_renamed() -> None:
    """kube-prometheus-stack mutes `info` while nothing graver fires in the namespace."""
    for name, rule in by_alert(groups(p2Severity="notice")).items():
        waits = rule["labels"]["priority"] == "P2"
        assert (rule["labels"]["severity"] == "notice") == waits, name


def test_groups_are_small_enough_to_be_evaluated_in_time() -> None:
    """Rules of one group run one after the other; the gravest have a group of their own."""
    sizes = {group["name"]: len(group["rules"]) for group in groups()}
    assert list(sizes) == [
        "tocsin-recordings",
        "tocsin-p0",
        "tocsin-p1",
        "tocsin-p2",
        "tocsin-none",
    ]
    assert max(sizes.values()) <= 20


@pytest.mark.parametrize("form", FORMS)
def test_a_place_that_the_chart_fills_in_is_quoted(form: str) -> None:
    """Else a namespace `123` or a release `on` would be a number or a truth to YAML."""
    for group in ("recordings", "p0", "p1", "p2", "none"):
        for line in with_places(rules_of(group, form)).splitlines():
            assert not re.fullmatch(r".*: __[A-Z_]+__", line), line
