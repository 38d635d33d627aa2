"""P1: an operator was given memory that it must not be given, or memory ran out."""

from tocsin.core.metrics import CHECK_FAILURES
from tocsin.core.terms import Layer, Priority
from tocsin.dashboards.contract import Alert, Case
from tocsin.dashboards.promql import arrived

MEMORY_FAILURE = Alert(
    id="memory_failure",
    priority=Priority.P1,
    expr=arrived(
        CHECK_FAILURES, "5m", ("model", "operator", "layer", "check"), {"layer": Layer.MEMORY}
    ),
    summary='{{ $labels.check }} failed {{ printf "%.0f" $value }} time(s) at '
    "{{ $labels.operator }} of {{ $labels.model }}: malformed operands or no memory left",
    summary_zh="{{ $labels.model }} 的算子 {{ $labels.operator }} 未通过检查 {{ $labels.check }} "
    '{{ printf "%.0f" $value }} 次:算子收到不合规的张量,或内存不足',
    fires=Case(
        {
            'tocsin_check_failures_total{model="m",operator="rope",layer="memory",'
            'check="memory.tensor_contract",priority="P0"}': "0x30 1x10"
        },
        at="10m",
        labels={
            "model": "m",
            "operator": "rope",
            "layer": "memory",
            "check": "memory.tensor_contract",
        },
        value=1,
    ),
    silent=Case(  # the same failure, but ten minutes old, and a new one of another layer
        {
            'tocsin_check_failures_total{model="m",operator="rope",layer="memory",'
            'check="memory.tensor_contract",priority="P0"}': "0x10 1x60",
            'tocsin_check_failures_total{model="m",operator="rope",layer="numerical",'
            'check="numerical.rope_norm",priority="P1"}': "0x30 1x40",
        },
        at="10m",
    ),
)
