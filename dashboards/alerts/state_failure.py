"""P1: what the model remembers (KV pages, positions, weights) is not what was written."""

from tocsin.core.metrics import CHECK_FAILURES
from tocsin.core.terms import Layer, Priority
from tocsin.dashboards.contract import Alert, Case
from tocsin.dashboards.promql import arrived

STATE_FAILURE = Alert(
    id="state_failure",
    priority=Priority.P1,
    expr=arrived(
        CHECK_FAILURES, "5m", ("model", "operator", "layer", "check"), {"layer": Layer.STATE}
    ),
    summary='{{ $labels.check }} failed {{ printf "%.0f" $value }} time(s) at '
    "{{ $labels.operator }} of {{ $labels.model }}: stored state is not what was written",
    summary_zh="{{ $labels.model }} 的算子 {{ $labels.operator }} 未通过检查 {{ $labels.check }} "
    '{{ printf "%.0f" $value }} 次:存储的状态(KV 页、位置、权重)与写入时不一致',
    fires=Case(
        {
            'tocsin_check_failures_total{model="m",operator="kv_read",layer="state",'
            'check="state.kv_page_sum",priority="P0"}': "0x30 1x10"
        },
        at="10m",
        labels={
            "model": "m",
            "operator": "kv_read",
            "layer": "state",
            "check": "state.kv_page_sum",
        },
        value=1,
    ),
    silent=Case(  # the same failure, but ten minutes old, and a new one of another layer
        {
            'tocsin_check_failures_total{model="m",operator="kv_read",layer="state",'
            'check="state.kv_page_sum",priority="P0"}': "0x10 1x60",
            'tocsin_check_failures_total{model="m",operator="rope",layer="numerical",'
            'check="numerical.rope_norm",priority="P1"}': "0x30 1x40",
        },
        at="10m",
    ),
)
