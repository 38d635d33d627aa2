"""P2: serving noticed something about itself that no other alert names."""

from tocsin.core.metrics import SERVICE_INCIDENTS
from tocsin.core.terms import Priority
from tocsin.dashboards.contract import Alert, Case
from tocsin.dashboards.promql import arrived

_NAMED_ELSEWHERE = ("actor_down", "alerts", "backend_error", "heartbeat", "logs", "metrics")
"""By replica_down, delivery_failing, breaker_open, stalled, journal_lost and no_reports."""
_OTHERS = sorted(
    detector
    for detector in SERVICE_INCIDENTS.values["detector"]
    if detector.removeprefix("service.") not in _NAMED_ELSEWHERE
)

SERVICE_INCIDENT = Alert(
    id="service_incident",
    priority=Priority.P2,
    expr=arrived(SERVICE_INCIDENTS, "30m", ("detector",), {"detector": "~" + "|".join(_OTHERS)}),
    summary='{{ $labels.detector }} spoke {{ printf "%.0f" $value }} time(s): a slow replica, a '
    "clock that jumped, a road or a control plane that was away, a start that failed or spans that "
    "are lost; answers are right, they may have been late",
    summary_zh='{{ $labels.detector }} 触发 {{ printf "%.0f" $value }} 次:副本变慢、时钟跳变、'
    "网络或控制面中断、启动失败或链路数据丢失;回答正确,但可能延迟",
    fires=Case(
        {'tocsin_service_incidents_total{detector="service.straggler"}': "0x40 2x10"},
        at="12m",
        labels={"detector": "service.straggler"},
        value=2,
    ),
    silent=Case(  # what has an alert of its own
        {
            'tocsin_service_incidents_total{detector="service.actor_down"}': "0x40 2x10",
            'tocsin_service_incidents_total{detector="service.clock"}': "0x60",
        },
        at="12m",
    ),
)
