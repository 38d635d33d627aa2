"""The rendered routes in the form in which an operator gives them to Alertmanager."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.helm.monitoring_rules import HERE, by_alert, groups
from tocsin.dashboards.contract import alerts
from tocsin.dashboards.promql import DRILL
from tocsin.dashboards.render.options import RenderOptions
from tocsin.dashboards.render.routes import route_tests
from tocsin.helm.gate.render import render
from tocsin.helm.monitoring.examples import EVERYTHING
from tocsin.helm.monitoring.merge import Strategy, merged
from tocsin.helm.monitoring.scope import NAMESPACE, RELEASE

OURS = "123/demo-tocsin"
"""What the operator puts before the names of our receivers."""
Values = Mapping[str, Any]


def config(values: Values = EVERYTHING, *, release: str = HERE[RELEASE]) -> dict[str, Any]:
    """The rendered AlertmanagerConfig."""
    (found,) = (
        one.body
        for one in render(values, release=release, namespace=HERE[NAMESPACE])
        if one.kind == "AlertmanagerConfig"
    )
    return found


def secrets(name: str, key: str) -> str:
    """What keys hold in these tests: an address where one is expected."""
    return f"https://hooks.example/{name}" if key in ("address", "url", "tickets") else "secret"


def built(*objects: Mapping[str, Any], **how: Any) -> dict[str, Any]:
    """Alertmanager's own configuration."""
    return merged(objects, **{"secrets": secrets, **how})


def rows(*, drills_page: bool = False) -> list[dict[str, Any]]:
    """The declared table of routes, with the rendered rules' labels and prefixed receivers."""
    rules = by_alert(groups(drills="never"))
    told = [*route_tests(RenderOptions(drills_page=drills_page))]
    for row in told:
        for one in (row["labels"], *row.get("firing", ())):
            rule = rules.get(one["alertname"])
            one |= rule["labels"] if rule else {}
        if "expect" in row:
            row["expect"] = [f"{OURS}/{name}" for name in row["expect"]]
    # Strangers are not ours to route: the main configuration's root has them.
    return [row for row in told if row["labels"]["alertname"] != "SomebodyElses"]


def amlint(*words: str) -> "subprocess.CompletedProcess[str]":
    """amlint in a process of its own."""
    command = [str(Path(sys.executable).with_name("amlint")), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def judged(
    folder: Path, document: Mapping[str, Any], table: list[dict[str, Any]]
) -> "subprocess.CompletedProcess[str]":
    """What amlint says of a table of routes."""
    (folder / "alertmanager.yml").write_text(yaml.safe_dump(dict(document), allow_unicode=True))
    (folder / "routes.yml").write_text(yaml.safe_dump(table, allow_unicode=True))
    return amlint("test", str(folder / "alertmanager.yml"), str(folder / "routes.yml"))


def without(table: list[dict[str, Any]], label: str) -> list[dict[str, Any]]:
    """The same alerts without one label."""
    return [
        {**row, "labels": {name: text for name, text in row["labels"].items() if name != label}}
        for row in table
        if "expect" in row
    ]


def in_earnest(table: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row an alert, as it is when nobody runs an experiment."""
    found = [row for row in table if "expect" in row and DRILL not in row["labels"]]
    assert len(found) == len(alerts())
    return found


STRATEGIES = {
    "OnNamespace": {"strategy": Strategy.ON_NAMESPACE},
    "OnNamespaceExceptForAlertmanagerNamespace, ours": {
        "strategy": Strategy.EXCEPT_OWN,
        "alertmanager_namespace": HERE[NAMESPACE],
    },
    "OnNamespaceExceptForAlertmanagerNamespace, another": {"strategy": Strategy.EXCEPT_OWN},
    "None": {"strategy": Strategy.NONE},
}
