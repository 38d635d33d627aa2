"""P2: honest steps have come close to a limit for an hour; soon one of them will alarm."""

from tocsin.core.metrics import RATIO_PEAK
from tocsin.core.terms import Priority
from tocsin.dashboards.contract import Alert, Case
from tocsin.dashboards.promql import by, select

HEADROOM_LOW = Alert(
    id="headroom_low",
    priority=Priority.P2,
    expr=f"max {by('model', 'layer')} (avg_over_time({select(RATIO_PEAK)}[1h])) > 0.8",
    hold="10m",
    summary="{{ $labels.layer }} checks of {{ $labels.model }} pass with less than 20 % headroom: "
    'the mean peak of an hour is {{ printf "%.2f" $value }} of the limit',
    summary_zh="{{ $labels.model }} 的 {{ $labels.layer }} 检查余量不足 20 %:"
    "一小时平均峰值已达上限的 "
    '{{ printf "%.2f" $value }}',
    fires=Case(
        {'tocsin_check_ratio_peak{model="m",layer="numerical",replica="r"}': "0.9x90"},
        at="75m",
        labels={"model": "m", "layer": "numerical"},
        value=0.9,
        interval="1m",
    ),
    silent=Case(  # close now and then
        {'tocsin_check_ratio_peak{model="m",layer="numerical",replica="r"}': "0.7x80 0.95x10"},
        at="90m",
        interval="1m",
    ),
)
