"""Tells nobody but the drill's receiver: faults are being injected on purpose."""

from tocsin.core.metrics import CHAOS_RUNNING
from tocsin.dashboards.contract import Alert, Case
from tocsin.dashboards.promql import by, select

CHAOS_RUNNING_NOW = Alert(
    id="chaos_running",
    priority=None,
    expr=f"max {by('instance')} ({select(CHAOS_RUNNING)}) == 1",
    summary="a chaos experiment runs on {{ $labels.instance }}",
    summary_zh="{{ $labels.instance }} 正在进行混沌实验",
    fires=Case(
        {'tocsin_chaos_running{instance="n:9464"}': "0x3 1x9"},
        at="2m",
        labels={"instance": "n:9464"},
    ),
    silent=Case({'tocsin_chaos_running{instance="n:9464"}': "1x3 0x9"}, at="2m"),
)
