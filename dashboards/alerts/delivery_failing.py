"""P2: a message to people ended as a dead letter."""

from tocsin.core.metrics import DELIVERIES
from tocsin.core.terms import Priority
from tocsin.dashboards.contract import Alert, Case
from tocsin.dashboards.promql import arrived

DELIVERY_FAILING = Alert(
    id="delivery_failing",
    priority=Priority.P2,
    expr=arrived(DELIVERIES, "1h", ("receiver",), {"result": "dead_letter"}),
    summary='{{ printf "%.0f" $value }} alert message(s) to {{ $labels.receiver }} could not be '
    "delivered and lie with the dead letters",
    summary_zh='发往 {{ $labels.receiver }} 的 {{ printf "%.0f" $value }} 条告警消息投递失败,'
    "已转入死信",
    fires=Case(
        {'tocsin_alert_deliveries_total{receiver="dingtalk",result="dead_letter"}': "0x40 2x10"},
        at="12m",
        labels={"receiver": "dingtalk"},
        value=2,
    ),
    silent=Case(  # late, but it arrived
        {
            'tocsin_alert_deliveries_total{receiver="dingtalk",result="retried"}': "0x40 9x10",
            'tocsin_alert_deliveries_total{receiver="dingtalk",result="ok"}': "0x40 2x10",
        },
        at="12m",
    ),
)
