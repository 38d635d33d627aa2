"""The rule file: recording rules, and every alert with the annotations that people act on."""

from typing import Any

from tocsin.dashboards.contract import Alert, alerts
from tocsin.dashboards.recordings import RECORDINGS
from tocsin.dashboards.render.options import RenderOptions


def rule_file(options: RenderOptions) -> dict[str, Any]:
    """The document for `rule_files`; the alerts are grouped by priority, the gravest first."""
    groups: list[dict[str, Any]] = [
        {
            "name": "tocsin-recordings",
            "rules": [{"record": rule.record, "expr": rule.expr} for rule in RECORDINGS],
        }
    ]
    for priority in ("P0", "P1", "P2", "none"):
        chosen = [unit for unit in alerts().values() if unit.labels["priority"] == priority]
        rules = [rule(unit, options) for unit in chosen]
        groups.append({"name": f"tocsin-{priority.lower()}", "rules": rules})
    return {"groups": groups}


def alone(unit: Alert, options: RenderOptions) -> dict[str, Any]:
    """A rule file with one alert only, for tests that evaluate it thousands of times."""
    return {"groups": [{"name": unit.id, "rules": [rule(unit, options)]}]}


def rule(unit: Alert, options: RenderOptions) -> dict[str, Any]:
    """One alerting rule."""
    entry: dict[str, Any] = {"alert": unit.name, "expr": unit.expr}
    if unit.hold != "0s":
        entry["for"] = unit.hold
    if unit.keep_firing:
        entry["keep_firing_for"] = unit.keep_firing
    return {**entry, "labels": unit.labels, "annotations": annotations(unit, options)}


def annotations(unit: Alert, options: RenderOptions) -> dict[str, str]:
    """What every alert says: what happened, in two languages, where to read on, what to run."""
    query = "?operator={{ $labels.operator }}" if unit.names_operator else ""
    runbooks = options.runbooks or f"{options.gateway_url}/docs/runbooks/"
    return {
        "summary": unit.summary,
        "summary_zh": unit.summary_zh,
        "runbook_url": f"{runbooks}{unit.id}.md",
        "dashboard_url": f"{options.gateway_url}/live{query}",
        "repro": unit.reproduce,
    }
