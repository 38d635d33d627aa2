"""Our alerts as rules that Grafana itself evaluates, for installations without an Alertmanager.

The rules in Prometheus stay the first choice: these are the same declarations, sent over HTTP.
"""

import re
from typing import Any

from tocsin.core.terms import Priority
from tocsin.dashboards.contract import Alert, alerts
from tocsin.dashboards.grafana.files import FOLDER_UID, SOURCE_UID, Addresses
from tocsin.dashboards.recordings import RECORDINGS

CONTACT_UID = "tocsin-webhook"
_LOOK_BACK_S = 600
_VALUE = re.compile(r"\$value\b")


def rules(addresses: Addresses) -> tuple[dict[str, Any], ...]:
    """A rule for each alert that tells somebody; the watchdog has no use here."""
    told = (alert for alert in alerts().values() if alert.priority is not None)
    return tuple(rule_of(alert, addresses) for alert in told)


def rule_of(alert: Alert, addresses: Addresses) -> dict[str, Any]:
    """The alert in the form of Grafana's provisioning API.

    The query gives a series for each alert that stands, with any number as its value, also 0; so
    the condition is that there is a number, not that it is above something.
    """
    query = {
        "refId": "A",
        "datasourceUid": SOURCE_UID,
        "relativeTimeRange": {"from": _LOOK_BACK_S, "to": 0},
        "model": {"refId": "A", "expr": whole(alert.expr), "instant": True, "range": False},
    }
    condition = {
        "refId": "B",
        "datasourceUid": "__expr__",
        "relativeTimeRange": {"from": 0, "to": 0},
        "model": {"refId": "B", "type": "math", "expression": "is_number($A)"},
    }
    rule = {
        "uid": f"tocsin-{alert.id.replace('_', '-')}",
        "title": alert.name,
        "ruleGroup": f"tocsin-{str(alert.priority or Priority.P2).lower()}",
        "folderUID": FOLDER_UID,
        "orgID": 1,
        "condition": "B",
        "data": [query, condition],
        "for": alert.hold,
        "noDataState": "OK",  # no series: nothing stands
        "execErrState": "Error",
        "isPaused": False,
        "labels": alert.labels,
        "annotations": {
            "summary": _VALUE.sub("$values.A.Value", alert.summary),
            "summary_zh": _VALUE.sub("$values.A.Value", alert.summary_zh),
            "runbook_url": f"{addresses.docs.rstrip('/')}/runbooks/{alert.id}.md",
            "repro": alert.reproduce,
        },
    }
    if alert.keep_firing:
        rule["keep_firing_for"] = alert.keep_firing
    return rule


def contact_point(url: str) -> dict[str, Any]:
    """A webhook that Grafana posts alerts to."""
    return {
        "uid": CONTACT_UID,
        "name": "Tocsin",
        "type": "webhook",
        "settings": {"url": url, "httpMethod": "POST"},
        "disableResolveMessage": False,
    }


def whole(expr: str) -> str:
    """The expression with recorded series written out: the Prometheus may lack our rules."""
    for recording in RECORDINGS:
        expr = re.sub(
            rf"(?<![\w:]){re.escape(recording.record)}(?![\w:])",
            lambda _, inner=recording.expr: f"({inner})",  # type: ignore[misc]
            expr,
        )
    return expr
