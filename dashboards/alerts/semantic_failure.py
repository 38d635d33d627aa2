"""P1: a check of what the tokens mean failed."""

from tocsin.core.metrics import CHECK_FAILURES
from tocsin.core.terms import Layer, Priority
from tocsin.dashboards.contract import Alert, Case
from tocsin.dashboards.promql import arrived

SEMANTIC_FAILURE = Alert(
    id="semantic_failure",
    priority=Priority.P1,
    expr=arrived(
        CHECK_FAILURES, "5m", ("model", "operator", "layer", "check"), {"layer": Layer.SEMANTIC}
    ),
    summary='{{ $labels.check }} failed {{ printf "%.0f" $value }} time(s) at '
    "{{ $labels.operator }} of {{ $labels.model }}: a token was not what the model chose",
    summary_zh="{{ $labels.model }} 的算子 {{ $labels.operator }} 未通过检查 {{ $labels.check }} "
    '{{ printf "%.0f" $value }} 次:输出的 token 与模型的选择不符',
    fires=Case(
        {
            'tocsin_check_failures_total{model="m",operator="sampler",layer="semantic",'
            'check="semantic.sampler",priority="P0"}': "0x30 1x10"
        },
        at="10m",
        labels={
            "model": "m",
            "operator": "sampler",
            "layer": "semantic",
            "check": "semantic.sampler",
        },
        value=1,
    ),
    silent=Case(  # the same failure, but ten minutes old, and a new one of another layer
        {
            'tocsin_check_failures_total{model="m",operator="sampler",layer="semantic",'
            'check="semantic.sampler",priority="P0"}': "0x10 1x60",
            'tocsin_check_failures_total{model="m",operator="rope",layer="numerical",'
            'check="numerical.rope_norm",priority="P1"}': "0x30 1x40",
        },
        at="10m",
    ),
)
