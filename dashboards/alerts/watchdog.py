"""Tells nobody: it always fires, so that its silence says that alerts no longer arrive."""

from tocsin.dashboards.contract import Alert, Case

WATCHDOG = Alert(
    id="watchdog",
    priority=None,
    expr="vector(1)",
    summary="alerts flow; this one always fires, and its absence is the alarm",
    summary_zh="告警链路正常;本告警恒为触发,它的消失才是警报",
    fires=Case({}, at="1m"),
    silent=None,
)
