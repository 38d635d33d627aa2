"""Value sets in which every value of monitoring shows: for tests, and for the gate's renders."""

from collections.abc import Mapping
from typing import Any

Values = Mapping[str, Any]


def _secret(name: str, key: str) -> dict[str, str]:
    return {"name": name, "key": key}


def _channels(kind: str) -> dict[str, Any]:
    """One kind of alert, told in all ways."""
    return {
        "relay": kind,
        "webhookSecret": _secret(f"{kind}-webhook", "address"),
        "pagerdutySecret": _secret(f"{kind}-pagerduty", "key"),
        "slack": {"urlSecret": _secret(f"{kind}-slack", "address"), "channel": f"#{kind}"},
        "email": {
            "to": f"{kind}@people.example",
            "fromAddress": "tocsin@machines.example",
            "smarthost": "mail.machines.example:587",
            "username": "tocsin",
            "passwordSecret": _secret(f"{kind}-mail", "secret"),
        },
    }


WATCHED: Values = {
    "monitoring": {
        "labels": {"release": "kps"},
        "podMonitor": {"enabled": True},
        "prometheusRule": {"enabled": True},
        "dashboards": {"enabled": True},
    }
}
"""Scraped, ruled and drawn; who is told stands elsewhere."""

TOLD: Values = {
    "token": _secret("service", "token"),
    "monitoring": {
        "podMonitor": {"enabled": True},
        "prometheusRule": {"enabled": True},
        "alertmanagerConfig": {
            "enabled": True,
            "receivers": {
                "page": {"pagerdutySecret": _secret("people", "pagerduty")},
                "ticket": {"webhookSecret": _secret("people", "tickets")},
            },
        },
    },
}
"""The least with which alerts reach people."""

EVERYTHING: Values = {
    "token": _secret("service", "bearer"),
    "monitoring": {
        "labels": {"release": "kps"},
        "links": {
            "gatewayUrl": "https://model.example",
            "docsUrl": "https://docs.example/tocsin",
            "grafanaUrl": "https://grafana.example",
        },
        "podMonitor": {
            "enabled": True,
            "labels": {"scraped-by": "one"},
            "intervalSeconds": 10,
            "timeoutSeconds": 5,
            "sampleLimit": 6000,
            "metricRelabelings": [
                {"action": "labeldrop", "regex": "container"},
                {
                    "sourceLabels": ["ray_io_cluster"],
                    "targetLabel": "cluster",
                    "replacement": "$1",
                },
            ],
        },
        "prometheusRule": {
            "enabled": True,
            "labels": {"ruled-by": "one"},
            "drills": "never",
            "p2Severity": "notice",
        },
        "alertmanagerConfig": {
            "enabled": True,
            "labels": {"routed-by": "one"},
            "drillsPage": True,
            "degrade": {"enabled": True},
            "receivers": {
                kind: _channels(kind) for kind in ("page", "ticket", "archive", "drill", "deadman")
            },
        },
        "dashboards": {
            "enabled": True,
            "label": "dashboards.example/show",
            "labelValue": "yes",
            "folderAnnotation": "dashboards.example/folder",
            "folder": "Models",
            "annotations": {"dashboards.example/owner": "models"},
        },
        "relay": {
            "enabled": True,
            "configSecret": "relay",
            "configKey": "config.yaml",
            "tokenSecret": _secret("relay-token", "bearer"),
            "fromNamespaces": ["monitoring", "alerting"],
            "resources": {
                "cpu": "200m",
                "cpuLimit": "1",
                "memory": "1Gi",
                "ephemeralStorage": "2Gi",
            },
            "placement": {
                "nodeSelector": {"pool": "services"},
                "tolerations": [{"key": "services", "operator": "Exists"}],
                "runtimeClassName": "gvisor",
                "priorityClassName": "high",
                "nodeAffinity": {
                    "required": [{"key": "zone", "operator": "In", "values": ["a"]}],
                    "preferred": [{"key": "disk", "operator": "Exists", "weight": 10}],
                },
            },
        },
    },
}
"""Every value differs from its default, but for what stands for a relay elsewhere."""

RELAY_ELSEWHERE: Values = {
    "token": _secret("service", "token"),
    "monitoring": {
        "relay": {"url": "https://relay.example", "tokenSecret": _secret("relay", "token")},
        "alertmanagerConfig": {
            "enabled": True,
            "degrade": {"enabled": False},
            "receivers": {"page": {"relay": "robot"}, "ticket": {"relay": "robot"}},
        },
    },
}
"""A relay that this release does not run."""

EXAMPLES: Mapping[str, Values] = {
    "watched": WATCHED,
    "told": TOLD,
    "everything": EVERYTHING,
    "relay-elsewhere": RELAY_ELSEWHERE,
}
