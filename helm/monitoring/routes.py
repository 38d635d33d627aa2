"""The route tree of dashboards/ in the words of an AlertmanagerConfig, held to one release."""

import re
from collections.abc import Mapping
from typing import Any

from tocsin.dashboards.promql import DRILL
from tocsin.dashboards.render.alertmanager import DRILLS, TEXT, TITLE, alertmanager_file
from tocsin.dashboards.render.options import RenderOptions
from tocsin.helm.monitoring.scope import THIS_RELEASE, with_places

CONTINUE_HERE = "__DRILLS_PAGE__"
OURS = "Tocsin.+"
"""Names of our alerts. Others in the namespace are not ours to route: the operator tries each
AlertmanagerConfig, and a release that took every alert would send strangers' alerts to its people.
"""
_KEYS = {
    "group_by": "groupBy",
    "group_wait": "groupWait",
    "group_interval": "groupInterval",
    "repeat_interval": "repeatInterval",
    "receiver": "receiver",
    "continue": "continue",
}
_SAID = {
    "pagerduty": {
        "description": "{{ (index .Alerts 0).Annotations.summary }}",
        "details": [
            {"key": "reproduce", "value": "{{ (index .Alerts 0).Annotations.repro }}"},
            {"key": "runbook", "value": "{{ (index .Alerts 0).Annotations.runbook_url }}"},
        ],
    },
    "slack": {"title": TITLE, "text": TEXT},
    "email": {"headers": [{"key": "Subject", "value": TITLE}], "text": TEXT},
}
_MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"(.*)"')


def route_files() -> Mapping[str, str]:
    """Path below files/ → part of the AlertmanagerConfig; one file a route, in their order."""
    tree = alertmanager_file(RenderOptions())
    top = {key: value for key, value in tree["route"].items() if key != "routes"}
    files = {"routes/top.yaml": with_places(_top(top))}
    for number, child in enumerate(tree["route"]["routes"]):
        name = f"routes/{number}-{child['receiver']}.yaml"
        files[name] = with_places([_route(child)])
    files["routes/inhibit.yaml"] = with_places([_inhibition(one) for one in tree["inhibit_rules"]])
    for channel, words in _SAID.items():
        files[f"receivers/{channel}.yaml"] = with_places(words)
    return files


def matcher(text: str) -> dict[str, str]:
    """`name=~"value"` as an object of the AlertmanagerConfig."""
    found = _MATCHER.fullmatch(text)
    if found is None:
        raise ValueError(f'routes: found the matcher {text!r}, expected name="value"')
    return {"name": found[1], "matchType": found[2], "value": found[3]}


def this_release() -> list[dict[str, str]]:
    """Matchers of the alerts of the release; the operator's own on the namespace comes on top."""
    return [
        {"name": label, "matchType": "=", "value": place} for label, place in THIS_RELEASE.items()
    ]


def _top(route: Mapping[str, Any]) -> dict[str, Any]:
    made = _route(route)
    ours = {"name": "alertname", "matchType": "=~", "value": OURS}
    return {**made, "matchers": [*this_release(), ours]}


def _route(route: Mapping[str, Any]) -> dict[str, Any]:
    made = {_KEYS[key]: value for key, value in route.items() if key != "matchers"}
    if "groupBy" in made:
        made["groupBy"] = [*THIS_RELEASE, *made["groupBy"]]
    matchers = [matcher(text) for text in route.get("matchers", ())]
    if matchers:
        made["matchers"] = matchers
    if made["receiver"] == DRILLS and any(one["name"] == DRILL for one in matchers):
        made["continue"] = CONTINUE_HERE
    return made


def _inhibition(rule: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "sourceMatch": [*this_release(), *map(matcher, rule["source_matchers"])],
        "targetMatch": [*this_release(), *map(matcher, rule["target_matchers"])],
        "equal": [*THIS_RELEASE, *rule["equal"]],
    }
