"""Unit tests for promtool: the cases that every alert declares."""

from typing import Any

from tocsin.dashboards.contract import Alert, Case, alerts, filled
from tocsin.dashboards.render.options import RenderOptions
from tocsin.dashboards.render.rules import annotations

RULES = "rules.yml"


def test_file(options: RenderOptions) -> dict[str, Any]:
    """The document for `promtool test rules`; it lies beside the rule file."""
    tests = []
    for unit in alerts().values():
        tests.append(_test(unit, unit.fires, options, fires=True))
        if unit.silent is not None:
            tests.append(_test(unit, unit.silent, options, fires=False))
    return {"rule_files": [RULES], "evaluation_interval": "15s", "tests": tests}


def _test(unit: Alert, case: Case, options: RenderOptions, *, fires: bool) -> dict[str, Any]:
    expected = []
    if fires:
        said = annotations(unit, options)
        expected = [
            {
                "exp_labels": {**unit.labels, **case.labels},
                "exp_annotations": {
                    name: filled(text, case.labels, case.value) for name, text in said.items()
                },
            }
        ]
    series = [{"series": name, "values": values} for name, values in case.series.items()]
    return {
        "name": f"{unit.name} {'fires' if fires else 'stays silent'}",
        "interval": case.interval,
        "input_series": series,
        "alert_rule_test": [{"eval_time": case.at, "alertname": unit.name, "exp_alerts": expected}],
    }
