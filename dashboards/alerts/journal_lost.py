"""P2: records of failures are lost, because the disk did not take them."""

from tocsin.core.metrics import JOURNAL_DROPPED
from tocsin.core.terms import Priority
from tocsin.dashboards.contract import Alert, Case
from tocsin.dashboards.promql import arrived

JOURNAL_LOST = Alert(
    id="journal_lost",
    priority=Priority.P2,
    expr=arrived(JOURNAL_DROPPED, "1h", ("instance",)),
    summary='{{ $labels.instance }}: {{ printf "%.0f" $value }} line(s) or snapshot(s) of failures '
    "are lost, the disk did not take them; those failures cannot be run again",
    summary_zh='{{ $labels.instance }}:磁盘拒收 {{ printf "%.0f" $value }} 条故障记录或快照,'
    "已丢失;这些故障无法复现",
    fires=Case(
        {'tocsin_journal_dropped_total{instance="n:9464"}': "0x40 3x10"},
        at="12m",
        labels={"instance": "n:9464"},
        value=3,
    ),
    silent=Case(  # lost long ago
        {'tocsin_journal_dropped_total{instance="n:9464"}': "0x4 3x400"},
        at="90m",
    ),
)
