"""What a place may choose about its alerting: addresses, channels, intervals, where secrets lie."""

from dataclasses import dataclass, field
from enum import StrEnum


class Channel(StrEnum):
    """Ways to reach people, each drawn into the routes only where it is chosen."""

    WECOM_APP = "wecom-app"
    WECOM_ROBOT = "wecom-robot"
    DINGTALK = "dingtalk"
    SLACK = "slack"
    PAGERDUTY = "pagerduty"
    WEBHOOK = "webhook"


@dataclass(frozen=True, slots=True)
class WecomApp:
    """Coordinates of a WeCom application; Alertmanager speaks its API itself.

    Attributes:
        secret: text, because Alertmanager before 0.31 reads this secret from nowhere else; a file
            that holds one is written readable by its owner alone, and never committed.
    """

    corp_id: str
    agent_id: str
    secret: str = field(repr=False)
    to_party: str = "1"
    api_url: str = "https://qyapi.weixin.qq.com/cgi-bin/"


@dataclass(frozen=True, slots=True)
class RenderOptions:
    """Everything that differs between two places.

    Attributes:
        gateway_url: of the served model: its live page and its `/degrade` hook.
        relay_url: of `tocsin alerts relay`, for the robots that Alertmanager cannot speak to;
            empty: there is none, and nobody is told by it.
        runbooks: put before `<alert id>.md`; empty: the gateway's own `/docs/runbooks/`.
        secrets: folder of the files with tokens, as Alertmanager sees it. Files: `tocsin_token`,
            `slack_url`, `pagerduty_key`, and `relay_token` where the relay demands one.
        slack_channel, slack_url, pagerduty_url: the addresses are for tests; empty means the real.
        deadman_url: called every minute while alerts flow; empty: the relay.
        relay_only: Slack and PagerDuty go through the relay as well, so that one file says how to
            reach people; otherwise Alertmanager speaks to them itself and needs no relay for a P0.
        drills_page: send drills on to the people, after the drill's own receiver.
        http_sd: addresses of hubs' `/sd`; targets: hubs by address, where nothing discovers them.
        drill_targets: the same, of hubs whose model is attacked on purpose.
        alertmanagers: addresses (host:port) for Prometheus.
    """

    gateway_url: str = "http://127.0.0.1:8000"
    relay_url: str = "http://127.0.0.1:9465"
    runbooks: str = ""
    secrets: str = "/etc/tocsin/secrets"
    channels: frozenset[Channel] = frozenset(Channel) - {Channel.WECOM_APP}
    wecom_app: WecomApp | None = None
    slack_channel: str = "#tocsin"
    slack_url: str = ""
    pagerduty_url: str = ""
    relay_token: bool = False
    deadman_url: str = ""
    relay_only: bool = False
    drills_page: bool = False
    http_sd: tuple[str, ...] = ("http://127.0.0.1:9464/sd",)
    targets: tuple[str, ...] = ()
    drill_targets: tuple[str, ...] = ()
    alertmanagers: tuple[str, ...] = ("127.0.0.1:9093",)
    scrape_s: int = 5
    evaluation_s: int = 5
