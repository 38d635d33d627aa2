"""The route table as tests: which receivers each alert reaches, and what silences it meanwhile."""

from collections.abc import Mapping
from typing import Any

from tocsin.dashboards.contract import Alert, alerts
from tocsin.dashboards.promql import DRILL
from tocsin.dashboards.render.alertmanager import (
    ARCHIVE,
    DEADMAN,
    DEGRADE,
    DRILLS,
    PAGE,
    TICKET,
)
from tocsin.dashboards.render.options import RenderOptions


def example(unit: Alert) -> dict[str, str]:
    """The labels of an alert as Alertmanager sees them, from its own firing case."""
    return {"alertname": unit.name, **unit.labels, **unit.fires.labels}


def route_tests(options: RenderOptions) -> list[dict[str, Any]]:
    """Tests in amlint's form; `tocsin alerts check` asks amtool the same."""
    tests = []
    for unit in alerts().values():
        labels = example(unit)
        tests.append(_reaches(f"{unit.name} in earnest", labels, _in_earnest(unit)))
        if unit.id != "watchdog":
            people = _in_earnest(unit) if options.drills_page and unit.priority else []
            drill = {**labels, DRILL: "true"}
            tests.append(_reaches(f"{unit.name} in a drill", drill, [DRILLS, *people]))
    stranger = {"alertname": "SomebodyElses"}
    tests.append(_reaches("an alert that no route knows is a ticket", stranger, [TICKET]))
    return [*tests, *_inhibited()]


def _in_earnest(unit: Alert) -> list[str]:
    if unit.id == "watchdog":
        return [DEADMAN]
    receivers = {"P0": [PAGE], "P1": [TICKET], "P2": [ARCHIVE], "none": [DRILLS]}
    degrade = [DEGRADE] if unit.labels["priority"] == "P0" and unit.names_operator else []
    return [*degrade, *receivers[unit.labels["priority"]]]


def _reaches(name: str, labels: Mapping[str, str], receivers: list[str]) -> dict[str, Any]:
    return {"name": name, "labels": dict(labels), "expect": receivers}


def _inhibited() -> list[dict[str, Any]]:
    page = {**example(alerts()["operator_failing"]), "operator": "rope"}
    ticket = {**example(alerts()["memory_failure"]), "operator": "rope"}
    other = {**ticket, "operator": "linear"}
    down = example(alerts()["replica_down"])
    fast = example(alerts()["error_budget_burn_fast"])
    slow = example(alerts()["error_budget_burn_slow"])

    def case(name: str, target: dict[str, str], source: dict[str, str], muted: bool) -> Any:
        return {"name": name, "labels": target, "firing": [source], "inhibited": muted}

    return [
        case("a page about an operator silences its tickets", ticket, page, True),
        case("a page about one operator leaves another's ticket", other, page, False),
        case("a drill's page leaves a ticket in earnest", ticket, {**page, DRILL: "true"}, False),
        case("a page about an operator leaves a lost replica's ticket", down, page, False),
        case("a page about requests leaves a lost replica's ticket", down, fast, False),
        case("the fast burn silences the slow", slow, fast, True),
        case("nothing silences a page", page, fast, False),
    ]
