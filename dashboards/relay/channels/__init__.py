"""One channel a file: how a letter looks there, and what the answer means."""

from tocsin.core.clock import Clock
from tocsin.dashboards.relay.channels.apprise import AppriseChannel
from tocsin.dashboards.relay.channels.contract import Channel
from tocsin.dashboards.relay.channels.dingtalk import DingTalk
from tocsin.dashboards.relay.channels.pagerduty import PagerDuty
from tocsin.dashboards.relay.channels.slack import Slack
from tocsin.dashboards.relay.channels.webhook import Webhook
from tocsin.dashboards.relay.channels.wecom_robot import WecomRobot
from tocsin.dashboards.relay.config import (
    AppriseConfig,
    DingTalkConfig,
    PagerDutyConfig,
    ReceiverConfig,
    SlackConfig,
    WecomRobotConfig,
)


def channel_of(name: str, config: ReceiverConfig, clock: Clock) -> Channel:
    """The channel that a receiver's configuration asks for."""
    if isinstance(config, WecomRobotConfig):
        return WecomRobot(name, config)
    if isinstance(config, DingTalkConfig):
        return DingTalk(name, config, clock)
    if isinstance(config, SlackConfig):
        return Slack(name, config)
    if isinstance(config, PagerDutyConfig):
        return PagerDuty(name, config)
    if isinstance(config, AppriseConfig):
        return AppriseChannel(name, config)
    return Webhook(name, config)
