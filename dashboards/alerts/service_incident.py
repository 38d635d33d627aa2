"""P2: serving noticed something about itself, also what was over before a graver alert spoke."""

from tocsin.core.metrics import SERVICE_INCIDENTS
from tocsin.core.terms import Priority
from tocsin.dashboards.contract import Alert, Case
from tocsin.dashboards.promql import arrived

SERVICE_INCIDENT = Alert(
    id="service_incident",
    priority=Priority.P2,
    expr=arrived(SERVICE_INCIDENTS, "30m", ("detector",)),
    summary='{{ $labels.detector }} spoke {{ printf "%.0f" $value }} time(s): a replica '
    "that was gone or slow, a backend that failed, a clock that jumped, a road or a control plane "
    "that was away, or telemetry that is lost; answers are right, they may have been late",
    summary_zh='{{ $labels.detector }} 触发 {{ printf "%.0f" $value }} 次:副本丢失或变慢、'
    "后端失败、时钟跳变、网络或控制面中断,或观测数据丢失;回答正确,但可能延迟",
    fires=Case(
        {'tocsin_service_incidents_total{detector="service.straggler"}': "0x40 2x10"},
        at="12m",
        labels={"detector": "service.straggler"},
        value=2,
    ),
    silent=Case(  # none yet, and one that is an hour old
        {
            'tocsin_service_incidents_total{detector="service.clock"}': "0x300",
            'tocsin_service_incidents_total{detector="service.actor_down"}': "0x10 2x290",
        },
        at="60m",
    ),
)
