"""P2: a node's hub answers, and what it says is old."""

from tocsin.core.metrics import HUB_MERGE
from tocsin.core.terms import Priority
from tocsin.dashboards.contract import Alert, Case
from tocsin.dashboards.promql import by, select

HUB_STALE = Alert(
    id="hub_stale",
    priority=Priority.P2,
    expr=f"time() - max {by('instance')} ({select(HUB_MERGE)}) > 30",
    hold="1m",
    summary="the hub {{ $labels.instance }} has not read its node's metric files for "
    '{{ printf "%.0f" $value }} s; its numbers are old',
    summary_zh="{{ $labels.instance }} 的指标汇总已 "
    '{{ printf "%.0f" $value }} 秒未更新,其数值已过时',
    fires=Case(
        {'tocsin_hub_last_merge_timestamp_seconds{instance="n:9464"}': "0+15x4 60x20"},
        at="3m",
        labels={"instance": "n:9464"},
        value=120,
    ),
    silent=Case(
        {'tocsin_hub_last_merge_timestamp_seconds{instance="n:9464"}': "0+15x4 60x2 105+15x20"},
        at="3m",
    ),
)
