"""P0: an operator failed more than ten times within a minute."""

from tocsin.core.metrics import FAILURES_WINDOW
from tocsin.core.terms import Priority
from tocsin.dashboards.contract import Alert, Case
from tocsin.dashboards.promql import by, select

# The window is counted exactly in the serving processes and shown at its worst for two minutes:
# nothing here depends on when it is scraped. `increase(…[1m]) > 10` is wrong at 9, 10 and 11.
OPERATOR_FAILING = Alert(
    id="operator_failing",
    priority=Priority.P0,
    expr=f"max {by('model', 'operator')} ({select(FAILURES_WINDOW)}) > 10",
    keep_firing="1m",
    summary='{{ $labels.operator }} of {{ $labels.model }} failed {{ printf "%.0f" $value }} times '
    "within a minute (limit 10); every replica has been told to degrade it",
    summary_zh="{{ $labels.model }} 的算子 {{ $labels.operator }} 一分钟内失败 "
    '{{ printf "%.0f" $value }} 次(上限 10 次),所有副本已收到降级命令',
    fires=Case(
        {'tocsin_operator_failures_window{model="m",operator="rope",scope="fleet"}': "0x3 11x3"},
        at="1m",
        labels={"model": "m", "operator": "rope"},
        value=11,
    ),
    silent=Case(
        {
            'tocsin_operator_failures_window{model="m",operator="rope",scope="fleet"}': "0x3 10x9",
            'tocsin_operator_failures_window{model="m",operator="rms_norm",scope="node"}': "10x12",
        },
        at="2m",
    ),
)
