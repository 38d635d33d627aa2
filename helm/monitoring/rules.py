"""The rules of dashboards/, held to one release, as the chart's PrometheusRule takes them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tocsin.dashboards.contract import Alert, alerts
from tocsin.dashboards.promql import DRILL
from tocsin.dashboards.recordings import RECORDINGS
from tocsin.dashboards.render.options import RenderOptions
from tocsin.dashboards.render.rules import rule
from tocsin.helm.monitoring import presence
from tocsin.helm.monitoring.drills import marked
from tocsin.helm.monitoring.scope import (
    NAMESPACE_HERE,
    RELEASE_HERE,
    THIS_RELEASE,
    scoped,
    with_places,
)

DOCS_HERE = "__DOCS__"
LIVE_HERE, LIVE_OPERATOR_HERE = "__LIVE__", "__LIVE_OPERATOR__"
SEVERITY_HERE, DRILL_HERE = "__SEVERITY__", "__DRILL__"

GROUPS = ("recordings", "p0", "p1", "p2", "none")
"""Groups in the order of the PrometheusRule; each is one file of the chart."""

_OPTIONS = RenderOptions(runbooks=f"{DOCS_HERE}/runbooks/")
_PODS = f"kubectl --namespace {NAMESPACE_HERE} get pods --output name --selector " + ",".join(
    (
        "app.kubernetes.io/name=tocsin",
        f"app.kubernetes.io/instance={RELEASE_HERE}",
        "app.kubernetes.io/component=worker",
    )
)


FORMS = RUNNING, PLAIN = "running", "plain"
"""Two forms of each group: alerts that find out by themselves whether they are a drill's, and
alerts on which the chart puts the mark, or none."""


def rule_files() -> Mapping[str, str]:
    """Path below files/ → the rules of one group, with places for the release to fill in."""
    return {
        f"rules/{form}/{group}.yaml": with_places(rules_of(group, form))
        for form in FORMS
        for group in GROUPS
    }


def rules_of(group: str, form: str) -> list[dict[str, Any]]:
    """The rules of one group."""
    if group == "recordings":
        return [
            {"record": one.record, "expr": scoped(one.expr), "labels": dict(THIS_RELEASE)}
            for one in RECORDINGS
        ]
    return [
        _alert(unit, form) for unit in alerts().values() if unit.labels["priority"].lower() == group
    ]


def _alert(unit: Alert, form: str) -> dict[str, Any]:
    entry = rule(unit, _OPTIONS)
    severity = SEVERITY_HERE if unit.labels["priority"] == "P2" else unit.labels["severity"]
    labels = {**unit.labels, "severity": severity, **THIS_RELEASE}
    if unit.id == presence.ID:
        unit = replace(unit, expr=presence.pods_unread(unit))
    expr = unit.expr
    if unit.priority is not None:  # the others tell nobody, drill or not
        if form == PLAIN:
            labels[DRILL] = DRILL_HERE
        else:
            expr = marked(unit)
    words = {**entry["annotations"], "repro": _reproduce(unit)}
    operator = "{{ $labels.operator }}" if unit.names_operator else ""
    words["dashboard_url"] = f"{LIVE_OPERATOR_HERE}{operator}" if operator else LIVE_HERE
    return {**entry, "expr": scoped(expr), "labels": labels, "annotations": words}


def _reproduce(unit: Alert) -> str:
    """Every worker pod is asked: the failure lies in the journal of the one that recorded it."""
    return (
        f"for pod in $({_PODS}); do kubectl --namespace {NAMESPACE_HERE} exec $pod -- "
        f"{unit.reproduce} --out /tmp/reproduction; done"
    )
