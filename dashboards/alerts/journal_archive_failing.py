"""P2: journal files could not be archived, or have waited for a day."""

from tocsin.core.metrics import ARCHIVE_FAILURES, ARCHIVE_LAG
from tocsin.core.terms import Priority
from tocsin.dashboards.contract import Alert, Case
from tocsin.dashboards.promql import arrived, by, select

JOURNAL_ARCHIVE_FAILING = Alert(
    id="journal_archive_failing",
    priority=Priority.P2,
    expr=f"{arrived(ARCHIVE_FAILURES, '1h', ('instance',))}\n"
    f"or max {by('instance')} ({select(ARCHIVE_LAG)}) > 86400",
    summary="{{ $labels.instance }}: journal files could not be archived, or wait for longer than "
    "a day; they are deleted after seven days or when the disk is full",
    summary_zh="{{ $labels.instance }}:日志文件归档失败或已等待超过一天;七天后或磁盘满时将被删除",
    fires=Case(
        {'tocsin_journal_archive_failures_total{instance="n:9464"}': "0x40 1x10"},
        at="12m",
        labels={"instance": "n:9464"},
    ),
    silent=Case(
        {
            'tocsin_journal_archive_failures_total{instance="n:9464"}': "0x60",
            'tocsin_journal_archive_lag_seconds{instance="n:9464"}': "86000x60",
        },
        at="12m",
    ),
)
