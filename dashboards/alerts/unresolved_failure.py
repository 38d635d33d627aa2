"""P1: nothing on the recovery ladder helped, and a request was refused with a failure id."""

from tocsin.core.metrics import CAUSES
from tocsin.core.terms import Cause, Priority
from tocsin.dashboards.contract import Alert, Case
from tocsin.dashboards.promql import arrived

UNRESOLVED_FAILURE = Alert(
    id="unresolved_failure",
    priority=Priority.P1,
    expr=arrived(CAUSES, "10m", ("model",), {"cause": Cause.UNRESOLVED}),
    summary='{{ printf "%.0f" $value }} failure(s) of {{ $labels.model }} could not be repaired: '
    "re-execution, fallback and restoring pages and weights did not help, requests were refused",
    summary_zh='{{ $labels.model }} 有 {{ printf "%.0f" $value }} 次失败无法修复:'
    "重算、后备实现、恢复页与权重均无效,请求已被拒绝",
    fires=Case(
        {'tocsin_failure_causes_total{model="m",cause="unresolved"}': "0x40 2x20"},
        at="12m",
        labels={"model": "m"},
        value=2,
    ),
    silent=Case(  # everything that was repaired
        {
            'tocsin_failure_causes_total{model="m",cause="transient"}': "0x40 9x20",
            'tocsin_failure_causes_total{model="m",cause="persistent"}': "0x40 9x20",
            'tocsin_failure_causes_total{model="m",cause="state"}': "0x40 9x20",
            'tocsin_failure_causes_total{model="m",cause="unresolved"}': "2x80",
        },
        at="12m",
    ),
)
