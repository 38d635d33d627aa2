"""P1: a check raises, so what it should judge goes by unjudged."""

from tocsin.core.metrics import CHECKS
from tocsin.core.terms import Priority
from tocsin.dashboards.contract import Alert, Case
from tocsin.dashboards.promql import arrived

CHECK_BROKEN = Alert(
    id="check_broken",
    priority=Priority.P1,
    expr=arrived(CHECKS, "5m", ("model", "operator", "layer"), {"result": "error"}),
    summary="{{ $labels.layer }} checks of {{ $labels.operator }} of {{ $labels.model }} raised "
    '{{ printf "%.0f" $value }} time(s): what they look at was released with the verdict of the '
    "other checks alone",
    summary_zh="{{ $labels.model }} 的算子 {{ $labels.operator }} 的 {{ $labels.layer }} 检查自身"
    '报错 {{ printf "%.0f" $value }} 次:对应内容仅由其余检查裁决后即已输出',
    fires=Case(
        {
            'tocsin_checks_total{model="m",operator="rope",layer="numerical",result="error"}': (
                "0x30 1x10"
            )
        },
        at="10m",
        labels={"model": "m", "operator": "rope", "layer": "numerical"},
        value=1,
    ),
    silent=Case(  # checks that alarm are not broken, and one that raised ten minutes ago is known
        {
            'tocsin_checks_total{model="m",operator="rope",layer="numerical",result="alarm"}': (
                "0x30 5x40"
            ),
            'tocsin_checks_total{model="m",operator="linear",layer="numerical",result="error"}': (
                "0x10 1x60"
            ),
        },
        at="10m",
    ),
    detector="service.check_error",
)
