"""P1: a replica was lost and has not come back."""

from tocsin.core.metrics import REPLICA_UP
from tocsin.core.terms import Priority
from tocsin.dashboards.contract import Alert, Case
from tocsin.dashboards.promql import by, select

REPLICA_DOWN = Alert(
    id="replica_down",
    priority=Priority.P1,
    expr=f"min {by('model', 'replica')} ({select(REPLICA_UP)}) == 0",
    hold="15s",
    summary="replica {{ $labels.replica }} of {{ $labels.model }} is gone or no longer steps",
    summary_zh="{{ $labels.model }} 的副本 {{ $labels.replica }} 已丢失或停止推进",
    fires=Case(
        {'tocsin_replica_up{model="m",replica="r1"}': "1x4 0x12"},
        at="1m",
        labels={"model": "m", "replica": "r1"},
        interval="5s",
    ),
    silent=Case(  # one that was slow for ten seconds, beside one that works
        {
            'tocsin_replica_up{model="m",replica="r1"}': "1x4 0x1 1x12",
            'tocsin_replica_up{model="m",replica="r2"}': "1x20",
        },
        at="1m",
        interval="5s",
    ),
)
