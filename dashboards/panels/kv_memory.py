"""Is memory what it was when it was written, and is there enough of it?"""

from tocsin.core import metrics
from tocsin.dashboards.panel import Dashboard, Kind, Level, Panel, Row, Threshold, Unit, ValueText
from tocsin.dashboards.panels.choices import ANY_IS_BAD, MODEL, REPLICA
from tocsin.dashboards.query import increase, largest, rate, smallest, total

_LEVELS = (
    ValueText(0, "all is well", "正常", Level.OK),
    ValueText(1, "degraded", "已降级", Level.WARN),
    ValueText(2, "essential checks only", "仅必要检查", Level.BAD),
)

DASHBOARD = Dashboard(
    id="kv_memory",
    title="KV cache and memory",
    title_zh="KV 缓存与内存",
    description="Whether KV pages and weights still hold what was written, and how much room is "
    "left.",
    variables=(MODEL, REPLICA),
    rows=(
        Row(
            "Whose page, and what is in it",
            "页的归属与内容",
            (
                Panel(
                    id="generation_mismatches",
                    title="Pages of another owner or epoch",
                    title_zh="归属或世代不符",
                    description="A row was about to read a page that belongs to another request or "
                    "to an earlier life of the page. One is a P0: somebody's data could have "
                    "been seen.",
                    unit=Unit.NUMBER,
                    queries=(increase(metrics.GENERATION_MISMATCHES, legend="mismatches"),),
                    kind=Kind.STAT,
                    no_value="No replica has reported yet",
                    runbook="cross_request_data",
                    thresholds=ANY_IS_BAD,
                ),
                Panel(
                    id="checksum_mismatches",
                    title="Pages whose content changed",
                    title_zh="内容校验不符",
                    description="The sum taken when the page was written no longer holds.",
                    unit=Unit.NUMBER,
                    queries=(increase(metrics.CHECKSUM_MISMATCHES, legend="mismatches"),),
                    kind=Kind.STAT,
                    no_value="No replica has reported yet",
                    runbook="memory_failure",
                    thresholds=(Threshold(1, Level.WARN),),
                ),
                Panel(
                    id="repairs",
                    title="Repairs",
                    title_zh="修复",
                    description="KV pages taken out and zeroed, and weight tiles copied anew. Many "
                    "on one replica point to its device's memory.",
                    unit=Unit.NUMBER,
                    queries=(
                        increase(metrics.PAGES_QUARANTINED, legend="pages quarantined"),
                        increase(metrics.WEIGHTS_REPAIRED, legend="weight tiles repaired"),
                    ),
                    kind=Kind.STAT,
                    no_value="No replica has reported yet",
                    runbook="memory_failure",
                    thresholds=(Threshold(1, Level.WARN),),
                ),
                Panel(
                    id="mismatches",
                    title="Mismatches over time",
                    title_zh="不符随时间变化",
                    description="Failures of a page's owner, epoch or content sum.",
                    unit=Unit.PER_SECOND,
                    queries=(
                        rate(metrics.GENERATION_MISMATCHES, legend="owner or epoch"),
                        rate(metrics.CHECKSUM_MISMATCHES, legend="content"),
                    ),
                    kind=Kind.TIMESERIES,
                    no_value="No replica has reported yet",
                    runbook="cross_request_data",
                    width=12,
                ),
                Panel(
                    id="quarantine",
                    title="Repairs over time",
                    title_zh="修复随时间变化",
                    description="KV pages quarantined and weight tiles repaired.",
                    unit=Unit.PER_SECOND,
                    queries=(
                        rate(metrics.PAGES_QUARANTINED, legend="pages"),
                        rate(metrics.WEIGHTS_REPAIRED, legend="weight tiles"),
                    ),
                    kind=Kind.TIMESERIES,
                    no_value="No replica has reported yet",
                    runbook="memory_failure",
                    width=12,
                ),
            ),
        ),
        Row(
            "Room",
            "余量",
            (
                Panel(
                    id="usage",
                    title="KV pages in use",
                    title_zh="KV 页使用率",
                    description="Share of the pages that requests and the prefix index hold. Near "
                    "100 % requests make room for each other.",
                    unit=Unit.RATIO,
                    queries=(largest(metrics.KV_USAGE, by=("replica",)),),
                    kind=Kind.TIMESERIES,
                    no_value="No replica has reported yet",
                    runbook="stalled",
                    thresholds=(Threshold(0.9, Level.WARN),),
                    maximum=1.0,
                ),
                Panel(
                    id="preemptions",
                    title="Requests that made room",
                    title_zh="被抢占的请求",
                    description="Requests that gave up their pages to others and were computed "
                    "anew: right answers, later.",
                    unit=Unit.PER_SECOND,
                    queries=(rate(metrics.PREEMPTIONS, legend="preemptions"),),
                    kind=Kind.TIMESERIES,
                    no_value="No replica has reported yet",
                    runbook="stalled",
                ),
                Panel(
                    id="slots",
                    title="Requests in a slot, and queued",
                    title_zh="运行与排队的请求",
                    description="A queue that only grows means that demand is above what the "
                    "replicas can do.",
                    unit=Unit.NUMBER,
                    queries=(
                        total(metrics.RUNNING, legend="running"),
                        total(metrics.WAITING, legend="waiting"),
                    ),
                    kind=Kind.TIMESERIES,
                    no_value="No replica has reported yet",
                    runbook="stalled",
                ),
                Panel(
                    id="memory_free",
                    title="Free memory of the device",
                    title_zh="设备可用内存",
                    description="As the watermark reads it.",
                    unit=Unit.BYTES,
                    queries=(smallest(metrics.MEMORY_FREE, by=("replica",)),),
                    kind=Kind.TIMESERIES,
                    no_value="No replica has reported yet",
                    runbook="stalled",
                    width=12,
                ),
                Panel(
                    id="watermark",
                    title="Memory watermark",
                    title_zh="内存水位",
                    description="What each replica has given up for want of memory.",
                    unit=Unit.STATE,
                    queries=(largest(metrics.WATERMARK_LEVEL, by=("replica",)),),
                    kind=Kind.STATE,
                    no_value="No replica has reported yet",
                    runbook="stalled",
                    thresholds=(Threshold(1, Level.WARN), Threshold(2, Level.BAD)),
                    values=_LEVELS,
                    width=12,
                ),
            ),
        ),
    ),
)
