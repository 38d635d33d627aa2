"""P2: numerical checks failed, and recovery dealt with it; for the weekly digest."""

from tocsin.core.metrics import CHECK_FAILURES
from tocsin.core.terms import Layer, Priority
from tocsin.dashboards.contract import Alert, Case
from tocsin.dashboards.promql import arrived

NUMERICAL_DRIFT = Alert(
    id="numerical_drift",
    priority=Priority.P2,
    expr=arrived(
        CHECK_FAILURES, "1h", ("model", "operator", "layer", "check"), {"layer": Layer.NUMERICAL}
    ),
    summary='{{ $labels.check }} failed {{ printf "%.0f" $value }} time(s) within an hour at '
    "{{ $labels.operator }} of {{ $labels.model }}; the tokens were held and recomputed",
    summary_zh="{{ $labels.model }} 的算子 {{ $labels.operator }} 一小时内未通过检查 "
    '{{ $labels.check }} {{ printf "%.0f" $value }} 次;相关 token 已扣留并重算',
    fires=Case(
        {
            'tocsin_check_failures_total{model="m",operator="rms_norm",layer="numerical",'
            'check="numerical.rms_range",priority="P1"}': "0x90 3x10"
        },
        at="95m",
        labels={
            "model": "m",
            "operator": "rms_norm",
            "layer": "numerical",
            "check": "numerical.rms_range",
        },
        value=3,
        interval="1m",
    ),
    silent=Case(  # none for an hour
        {
            'tocsin_check_failures_total{model="m",operator="rms_norm",layer="numerical",'
            'check="numerical.rms_range",priority="P1"}': "0x20 3x80"
        },
        at="95m",
        interval="1m",
    ),
)
