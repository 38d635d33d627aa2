"""Can the other five dashboards be believed? Hubs, journal, deliveries."""

from tocsin.core import metrics
from tocsin.dashboards.panel import Dashboard, Kind, Level, Panel, Row, Threshold, Unit
from tocsin.dashboards.panels.choices import ANY_IS_BAD, OPERATOR
from tocsin.dashboards.query import increase, largest, rate, raw, total

SERIES_BUDGET = 2000
JOURNAL_CAP_BYTES = 2 * 2**30
_OF_HUBS = f"and on (instance, job) {metrics.HUB_SERIES.name}"

DASHBOARD = Dashboard(
    id="observer",
    title="Observer",
    title_zh="观测系统",
    description="Whether what is shown elsewhere can be believed: hubs, journal, deliveries.",
    variables=(OPERATOR,),
    rows=(
        Row(
            "Hubs",
            "汇聚器",
            (
                Panel(
                    id="merge_age",
                    title="Age of the numbers",
                    title_zh="数据时效",
                    description="Seconds since a hub last read its node's files. The files stay if "
                    "a hub dies, and a new one goes on from them.",
                    unit=Unit.SECONDS,
                    queries=(
                        raw(
                            f"time() - max by (instance) ({metrics.HUB_MERGE.name})",
                            "{{instance}}",
                        ),
                    ),
                    kind=Kind.TIMESERIES,
                    no_value="No hub is scraped: is Prometheus given the address of /sd?",
                    runbook="hub_stale",
                    thresholds=(Threshold(30, Level.WARN), Threshold(120, Level.BAD)),
                ),
                Panel(
                    id="merge_duration",
                    title="Time to read a node's files",
                    title_zh="读取节点文件耗时",
                    description="What each hub's last reading took.",
                    unit=Unit.SECONDS,
                    queries=(largest(metrics.HUB_MERGE_DURATION, legend="slowest hub"),),
                    kind=Kind.TIMESERIES,
                    no_value="No hub is scraped: is Prometheus given the address of /sd?",
                    runbook="hub_stale",
                    thresholds=(Threshold(0.02, Level.WARN), Threshold(1, Level.BAD)),
                ),
                Panel(
                    id="series",
                    title="Series of a hub",
                    title_zh="序列数",
                    description="The budget is 2,000; a label that grows without bound shows here "
                    "first.",
                    unit=Unit.NUMBER,
                    queries=(largest(metrics.HUB_SERIES, legend="largest hub"),),
                    kind=Kind.TIMESERIES,
                    no_value="No hub is scraped: is Prometheus given the address of /sd?",
                    runbook="hub_stale",
                    thresholds=(Threshold(SERIES_BUDGET, Level.BAD),),
                ),
                Panel(
                    id="scrape_duration",
                    title="Time of a scrape",
                    title_zh="抓取耗时",
                    description="As Prometheus measures it.",
                    unit=Unit.SECONDS,
                    queries=(raw(f"scrape_duration_seconds {_OF_HUBS}", "{{instance}}"),),
                    kind=Kind.TIMESERIES,
                    no_value="No hub is scraped: is Prometheus given the address of /sd?",
                    runbook="no_reports",
                    thresholds=(Threshold(0.1, Level.WARN), Threshold(1, Level.BAD)),
                    width=12,
                ),
                Panel(
                    id="versions",
                    title="Versions that serve",
                    title_zh="服务版本",
                    description="Two rows mean that a rollout is under way, or got stuck.",
                    unit=Unit.NUMBER,
                    queries=(
                        raw(
                            "count by (version, torch, ray, attn_backend) "
                            f"({metrics.BUILD_INFO.name})",
                            "{{version}}",
                            instant=True,
                        ),
                    ),
                    kind=Kind.TABLE,
                    no_value="No replica has reported yet",
                    runbook="replica_down",
                    width=12,
                ),
            ),
        ),
        Row(
            "Journal",
            "故障日志",
            (
                Panel(
                    id="records",
                    title="Failure records",
                    title_zh="故障记录",
                    description="What the journal did with each failure. Suppressed ones are "
                    "counted exactly, and one in full is always kept.",
                    unit=Unit.PER_SECOND,
                    queries=(rate(metrics.LOG_RECORDS, by=("decision",)),),
                    kind=Kind.TIMESERIES,
                    no_value="No failure has been recorded",
                    runbook="journal_archive_failing",
                    width=12,
                ),
                Panel(
                    id="journal_bytes",
                    title="Disk that journals take up",
                    title_zh="日志占用磁盘",
                    description="At 2 GiB the oldest archived files go first.",
                    unit=Unit.BYTES,
                    queries=(largest(metrics.JOURNAL_BYTES, legend="largest node"),),
                    kind=Kind.TIMESERIES,
                    no_value="No hub is scraped: is Prometheus given the address of /sd?",
                    runbook="journal_archive_failing",
                    thresholds=(
                        Threshold(0.8 * JOURNAL_CAP_BYTES, Level.WARN),
                        Threshold(JOURNAL_CAP_BYTES, Level.BAD),
                    ),
                    width=12,
                ),
                Panel(
                    id="archive_lag",
                    title="Oldest file not archived",
                    title_zh="归档延迟",
                    description="Age of the oldest rotated journal file that is not in the archive "
                    "yet; 0 when none waits or no archive is set.",
                    unit=Unit.SECONDS,
                    queries=(largest(metrics.ARCHIVE_LAG, legend="worst node"),),
                    kind=Kind.TIMESERIES,
                    no_value="No hub is scraped: is Prometheus given the address of /sd?",
                    runbook="journal_archive_failing",
                    thresholds=(Threshold(3600, Level.WARN), Threshold(86400, Level.BAD)),
                    width=8,
                ),
                Panel(
                    id="journal_dropped",
                    title="Lines that the disk did not take",
                    title_zh="磁盘拒收的日志行",
                    description="Lines and snapshots of failures that are lost, in the range "
                    "shown: the disk is full or broken. Serving goes on.",
                    unit=Unit.NUMBER,
                    queries=(increase(metrics.JOURNAL_DROPPED, legend="lost"),),
                    kind=Kind.STAT,
                    no_value="No hub is scraped: is Prometheus given the address of /sd?",
                    runbook="journal_lost",
                    thresholds=ANY_IS_BAD,
                    width=8,
                ),
                Panel(
                    id="archive_failures",
                    title="Archiving that failed",
                    title_zh="归档失败",
                    description="Journal files that could not be archived, in the range shown. "
                    "Nothing is deleted before it was read back.",
                    unit=Unit.NUMBER,
                    queries=(increase(metrics.ARCHIVE_FAILURES, legend="failed"),),
                    kind=Kind.STAT,
                    no_value="No hub is scraped: is Prometheus given the address of /sd?",
                    runbook="journal_archive_failing",
                    thresholds=ANY_IS_BAD,
                    width=8,
                ),
            ),
        ),
        Row(
            "Deliveries",
            "告警投递",
            (
                Panel(
                    id="deliveries",
                    title="Alert messages by receiver",
                    title_zh="各渠道告警投递",
                    description="Messages that were delivered, retried, held back by a robot's "
                    "rate limit, or given up.",
                    unit=Unit.NUMBER,
                    queries=(total(metrics.DELIVERIES, by=("receiver", "result")),),
                    kind=Kind.BAR,
                    no_value="The relay has not started",
                    runbook="delivery_failing",
                    width=16,
                ),
                Panel(
                    id="dead_letters",
                    title="Dead letters",
                    title_zh="死信",
                    description="Alert messages that no retry could deliver, in the range shown: "
                    "somebody was not told.",
                    unit=Unit.NUMBER,
                    queries=(
                        increase(
                            metrics.DELIVERIES,
                            where={"result": "dead_letter"},
                            legend="not delivered",
                        ),
                    ),
                    kind=Kind.STAT,
                    no_value="The relay has not started",
                    runbook="delivery_failing",
                    thresholds=ANY_IS_BAD,
                    width=8,
                ),
            ),
        ),
    ),
)
