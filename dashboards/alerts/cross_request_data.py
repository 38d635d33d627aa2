"""P0: a check saw a sign that one request read or overwrote another's data; once is enough."""

from tocsin.core.metrics import CHECK_FAILURES
from tocsin.core.terms import CROSSING_CHECKS, Priority
from tocsin.dashboards.contract import Alert, Case
from tocsin.dashboards.promql import arrived

_CHECKS = "~" + "|".join(check.replace(".", "[.]") for check in CROSSING_CHECKS)

CROSS_REQUEST_DATA = Alert(
    id="cross_request_data",
    priority=Priority.P0,
    expr=arrived(CHECK_FAILURES, "5m", ("model", "operator"), {"check": _CHECKS}),
    keep_firing="1m",
    summary="{{ $labels.operator }} of {{ $labels.model }}: "
    '{{ printf "%.0f" $value }} sign(s) that one request met the data of another',
    summary_zh="{{ $labels.model }} 的算子 {{ $labels.operator }}:"
    '{{ printf "%.0f" $value }} 次迹象表明一个请求接触到了另一个请求的数据',
    fires=Case(  # born at 1, one scrape before the look: increase() would see nothing
        {
            'tocsin_check_failures_total{model="m",operator="kv_read",layer="state",'
            'check="state.page_owner",priority="P0"}': "_x38 1x1"
        },
        at="10m",
        labels={"model": "m", "operator": "kv_read"},
        value=1,
    ),
    silent=Case(  # an old sign, and a new failure of a check that says nothing about neighbours
        {
            'tocsin_check_failures_total{model="m",operator="kv_read",layer="state",'
            'check="state.page_owner",priority="P0"}': "1x60",
            'tocsin_check_failures_total{model="m",operator="rope",layer="numerical",'
            'check="numerical.rope_norm",priority="P1"}': "0x30 1x30",
        },
        at="10m",
    ),
)
