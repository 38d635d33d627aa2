"""P1: requests wait at a replica and no token has come out of it for half a minute."""

from tocsin.core.metrics import LAST_TOKEN, RUNNING, WAITING
from tocsin.core.terms import Priority
from tocsin.dashboards.contract import Alert, Case
from tocsin.dashboards.promql import DRILL, by, select

_REPLICA = by("model", "replica")

STALLED = Alert(
    id="stalled",
    priority=Priority.P1,
    expr=f"time() - max {_REPLICA} ({select(LAST_TOKEN)}) > 30\n"
    f"and on (model, replica, {DRILL}) "
    f"(max {_REPLICA} ({select(WAITING)}) > 0 or max {_REPLICA} ({select(RUNNING)}) > 0)",
    hold="15s",
    summary="replica {{ $labels.replica }} of {{ $labels.model }}: requests wait and no token has "
    'come out for {{ printf "%.0f" $value }} s',
    summary_zh="{{ $labels.model }} 的副本 {{ $labels.replica }}:有请求在等待,但已 "
    '{{ printf "%.0f" $value }} 秒没有输出 token',
    fires=Case(  # promtool's clock begins at 0: the last token came at 60 s
        {
            'tocsin_last_decode_timestamp_seconds{model="m",replica="r"}': "0+15x4 60x20",
            'tocsin_requests_waiting{model="m",replica="r"}': "2x24",
            'tocsin_requests_running{model="m",replica="r"}': "0x24",
        },
        at="2m",
        labels={"model": "m", "replica": "r"},
        value=60,
    ),
    silent=Case(  # as long without a token, but nobody waits
        {
            'tocsin_last_decode_timestamp_seconds{model="m",replica="r"}': "0+15x4 60x20",
            'tocsin_requests_waiting{model="m",replica="r"}': "0x24",
            'tocsin_requests_running{model="m",replica="r"}': "0x24",
        },
        at="2m",
    ),
)
