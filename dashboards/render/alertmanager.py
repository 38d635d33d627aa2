"""Alertmanager's configuration: who is told of what, how soon, and what keeps quiet meanwhile.

The root is the tickets' receiver: an alert that no route knows is still somebody's ticket.
"""

from typing import Any

from tocsin.dashboards.promql import DRILL
from tocsin.dashboards.render.options import Channel, RenderOptions

DEADMAN, DRILLS, DEGRADE = "deadman", "drill", "degrade"
PAGE, TICKET, ARCHIVE = "p0-page", "p1-ticket", "p2-archive"

TITLE = "[{{ .CommonLabels.priority }}] {{ .CommonLabels.alertname }} {{ .CommonLabels.operator }}"
TEXT = (
    "{{ range .Alerts }}{{ .Annotations.summary }}\n{{ .Annotations.summary_zh }}\n"
    "reproduce: {{ .Annotations.repro }}\nrunbook: {{ .Annotations.runbook_url }}\n{{ end }}"
)


def alertmanager_file(options: RenderOptions) -> dict[str, Any]:
    """The document for `--config.file`."""
    return {
        "global": {"resolve_timeout": "5m"},
        "route": _route(options),
        "inhibit_rules": _inhibitions(),
        "receivers": _receivers(options),
    }


def _route(options: RenderOptions) -> dict[str, Any]:
    routes = [
        {
            "receiver": DEADMAN,
            "matchers": ['alertname="TocsinWatchdog"'],
            "group_wait": "0s",
            "group_interval": "1m",
            "repeat_interval": "1m",
        },
        # What only informs of a drill, wherever the drill runs.
        {"receiver": DRILLS, "matchers": ['priority="none"']},
        {
            "receiver": DRILLS,
            "matchers": [f'{DRILL}="true"'],
            "group_wait": "0s",
            "group_interval": "10s",
            **({"continue": True} if options.drills_page else {}),
        },
        # The second arm of the degradation; the first worked in the process, within the step.
        {
            "receiver": DEGRADE,
            "matchers": ['priority="P0"', 'operator=~".+"'],
            "group_wait": "0s",
            "group_interval": "10s",
            "repeat_interval": "5m",  # the order lasts ten minutes and is renewed
            "continue": True,
        },
        {
            "receiver": PAGE,
            "matchers": ['priority="P0"'],
            "group_wait": "0s",
            "group_interval": "30s",
            "repeat_interval": "1h",
        },
        {"receiver": TICKET, "matchers": ['priority="P1"'], "group_wait": "10s"},
        {
            "receiver": ARCHIVE,
            "matchers": ['priority="P2"'],
            "group_by": ["alertname", "model"],
            "group_wait": "10m",
            "group_interval": "24h",  # one message a day at most; the digest tells the week
            "repeat_interval": "96h",  # below Alertmanager's memory of 120 h
        },
    ]
    return {
        "receiver": TICKET,
        "group_by": ["alertname", "model", "operator", DRILL],
        "group_wait": "10s",
        "group_interval": "5m",
        "repeat_interval": "12h",
        "routes": routes,
    }


def _inhibitions() -> list[dict[str, Any]]:
    return [
        {  # who is paged about an operator needs no ticket about it; a drill mutes drills only
            "source_matchers": ['priority="P0"', 'operator=~".+"'],
            "target_matchers": ['priority=~"P1|P2"'],
            "equal": ["model", "operator", DRILL],
        },
        {
            "source_matchers": ['alertname="TocsinErrorBudgetBurnFast"'],
            "target_matchers": ['alertname="TocsinErrorBudgetBurnSlow"'],
            "equal": ["model", DRILL],
        },
    ]


def _receivers(options: RenderOptions) -> list[dict[str, Any]]:
    channels = options.channels
    page: dict[str, Any] = {"name": PAGE}
    if Channel.WECOM_APP in channels and options.wecom_app is not None:
        app = options.wecom_app
        page["wechat_configs"] = [
            {
                "api_url": app.api_url,
                "corp_id": app.corp_id,
                "agent_id": app.agent_id,
                "api_secret": app.secret,
                "to_party": app.to_party,
                "message": f"{TITLE}\n{TEXT}",
                "send_resolved": True,
            }
        ]
    if Channel.PAGERDUTY in channels and not options.relay_only:
        page["pagerduty_configs"] = [
            {
                "routing_key_file": f"{options.secrets}/pagerduty_key",
                **({"url": options.pagerduty_url} if options.pagerduty_url else {}),
                "severity": "critical",
                "description": "{{ (index .Alerts 0).Annotations.summary }}",
                "details": {
                    "reproduce": "{{ (index .Alerts 0).Annotations.repro }}",
                    "runbook": "{{ (index .Alerts 0).Annotations.runbook_url }}",
                },
            }
        ]
    if Channel.SLACK in channels and not options.relay_only:
        page["slack_configs"] = [
            {
                **(
                    {"api_url": options.slack_url}
                    if options.slack_url
                    else {"api_url_file": f"{options.secrets}/slack_url"}
                ),
                "channel": options.slack_channel,
                "title": TITLE,
                "text": TEXT,
                "send_resolved": True,
            }
        ]
    others = (Channel.SLACK, Channel.PAGERDUTY) if options.relay_only else ()
    page |= _relayed(options, Channel.WECOM_ROBOT, *others)
    return [
        {"name": DEADMAN, **_hook(options.deadman_url or _relay(options, DEADMAN), options)},
        {"name": DRILLS, **_hook(_relay(options, DRILLS), options)},
        {"name": DEGRADE, **_degrade(options)},
        page,
        {"name": TICKET, **_relayed(options, Channel.DINGTALK, Channel.WEBHOOK)},
        {"name": ARCHIVE, **_relayed(options, Channel.WEBHOOK)},
    ]


def _relay(options: RenderOptions, name: str) -> str:
    return f"{options.relay_url}/alerts/{name}" if options.relay_url else ""


def _relayed(options: RenderOptions, *wanted: Channel) -> dict[str, Any]:
    """Webhooks to the relay's receivers, which speak to the robots."""
    chosen = [channel for channel in wanted if channel in options.channels]
    configs = [
        config
        for channel in chosen
        for config in _hook(_relay(options, channel), options).get("webhook_configs", [])
    ]
    return {"webhook_configs": configs} if configs else {}


def _hook(url: str, options: RenderOptions) -> dict[str, Any]:
    if not url:
        return {}
    config: dict[str, Any] = {"url": url, "send_resolved": True}
    if options.relay_token:
        config["http_config"] = _bearer(f"{options.secrets}/relay_token")
    return {"webhook_configs": [config]}


def _degrade(options: RenderOptions) -> dict[str, Any]:
    return {
        "webhook_configs": [
            {
                "url": f"{options.gateway_url}/degrade",
                "send_resolved": False,  # the order ends by itself
                "http_config": _bearer(f"{options.secrets}/tocsin_token"),
            }
        ]
    }


def _bearer(file: str) -> dict[str, Any]:
    return {"authorization": {"type": "Bearer", "credentials_file": file}}
