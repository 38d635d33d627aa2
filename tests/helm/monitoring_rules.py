"""The declared cases of alerts as a release in a cluster sees them, beside another release."""

from collections.abc import Mapping
from typing import Any

from tests.dashboards.promql import seconds
from tocsin.core.metrics import CHAOS_RUNNING
from tocsin.dashboards.contract import Alert, Case, alerts, filled
from tocsin.dashboards.promql import DRILL
from tocsin.dashboards.recordings import RECORDINGS
from tocsin.helm.gate.render import render
from tocsin.helm.monitoring.drills import look_back
from tocsin.helm.monitoring.examples import WATCHED
from tocsin.helm.monitoring.scope import NAMESPACE, RELEASE, inserted

Rules = Mapping[str, dict[str, Any]]
HERE = {NAMESPACE: "123", RELEASE: "demo"}
"""A namespace that YAML takes for a number unless it is quoted."""
QUICK_S = 1200
"""Cases that look later are evaluated for hours, and every minute is enough for them."""
ELSEWHERE = {NAMESPACE: "other", RELEASE: "demo"}
BESIDE = {NAMESPACE: "123", RELEASE: "demo-2"}


def groups(values: Mapping[str, Any] = WATCHED, **changes: Any) -> list[dict[str, Any]]:
    """The groups of the rendered PrometheusRule."""
    monitoring: dict[str, Any] = dict(values["monitoring"])
    monitoring["prometheusRule"] = {**monitoring["prometheusRule"], **changes}
    (rule,) = (
        one.body
        for one in render(
            {**values, "monitoring": monitoring},
            release=HERE[RELEASE],
            namespace=HERE[NAMESPACE],
        )
        if one.kind == "PrometheusRule"
    )
    found: list[dict[str, Any]] = rule["spec"]["groups"]
    return found


def by_alert(found: list[dict[str, Any]]) -> Rules:
    """Name of the alert → its rule."""
    return {rule["alert"]: rule for group in found for rule in group["rules"] if "alert" in rule}


def of(case: Case, where: Mapping[str, str]) -> dict[str, str]:
    """The series of a case, with the labels that the PodMonitor gives to a release's targets."""
    return {inserted(name, _labels(name, where)): text for name, text in case.series.items()}


def _labels(name: str, where: Mapping[str, str]) -> Mapping[str, str]:
    """`up` is the head's in the declared cases: of a worker it says nothing by itself."""
    return {**where, "component": "head"} if name.startswith("up{") else where


def expected(unit: Alert, case: Case, rule: Mapping[str, Any], *, drill: bool) -> dict[str, Any]:
    """The alert that must fire: the rule's labels and the case's, and its filled words."""
    labels = {**rule["labels"], **case.labels, **({DRILL: "true"} if drill else {})}
    words = {
        name: filled(text, {**case.labels, **HERE}, case.value)
        for name, text in rule["annotations"].items()
    }
    return {"exp_labels": labels, "exp_annotations": words}


def promtool_tests(
    rules: Rules, *, drill: bool = False, running: bool = False, slow: bool = False
) -> dict[str, Any]:
    """Every case of every alert for `promtool test rules`: of the quick ones, or of the slow.

    Beside it stands the same release name in another namespace and another release in the same one,
    each with the opposite: what is well there must not mask, what is broken there must not fire.
    """
    tests = []
    for unit in alerts().values():
        if slow != (seconds(unit.fires.at) > QUICK_S):
            continue
        tests.append(_test(unit, unit.fires, unit.silent, rules, drill=drill, running=running))
        if unit.silent is not None:
            tests.append(_test(unit, unit.silent, unit.fires, rules, drill=drill, running=running))
    every = "1m" if slow else "15s"
    return {"rule_files": ["rules.yml"], "evaluation_interval": every, "tests": tests}


def _test(
    unit: Alert, case: Case, other: Case | None, rules: Rules, *, drill: bool, running: bool
) -> dict[str, Any]:
    fires = case is unit.fires
    series = of(case, HERE)
    if other is not None:
        assert other.interval == case.interval
        series |= of(other, ELSEWHERE) | of(other, BESIDE)
    marked = unit.priority is not None and (drill or running)
    if running:
        series |= experiment(HERE, case)
    else:  # somebody else's experiment is not ours
        series |= experiment(ELSEWHERE, case) | experiment(BESIDE, case)
    known = expected(unit, case, rules[unit.name], drill=marked)
    return {
        "name": f"{unit.name} {'fires' if fires else 'stays silent'}",
        "interval": case.interval,
        "input_series": [{"series": name, "values": text} for name, text in series.items()],
        "alert_rule_test": [
            {
                "eval_time": case.at,
                "alertname": unit.name,
                "exp_alerts": [known] if fires else [],
            }
        ],
    }


def experiment(where: Mapping[str, str], case: Case) -> dict[str, str]:
    """An experiment that runs for as long as the case lasts."""
    if any(name.startswith(CHAOS_RUNNING.name) for name in case.series):
        return {}
    count = int(seconds(case.at) / seconds(case.interval)) + 4
    return {inserted(f'{CHAOS_RUNNING.name}{{pod="driver"}}', where): f"1x{count}"}


def recorded() -> list[str]:
    """Names of the series that the rules record."""
    return [rule.record for rule in RECORDINGS]


def patience_s(unit: Alert) -> float:
    """How long after an experiment an alert still counts as its own."""
    return seconds(look_back(unit))
