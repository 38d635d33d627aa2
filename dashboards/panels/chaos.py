"""What was broken on purpose, who noticed, how soon, and whether it is gone again."""

from tocsin.core import metrics
from tocsin.dashboards.panel import Dashboard, Kind, Level, Panel, Row, Threshold, Unit
from tocsin.dashboards.panels.choices import ANY_IS_BAD, MODEL, RUNS
from tocsin.dashboards.query import (
    buckets,
    increase,
    largest,
    quantiles,
    rate,
    raw,
    select,
    total,
)

_INJECTED, _DETECTED, _HEALED = (
    f"sum by (fault) ({select(metric)})"
    for metric in (metrics.FAULTS_INJECTED, metrics.FAULTS_DETECTED, metrics.FAULTS_HEALED)
)


def _stage(expr: str, name: str) -> str:
    return f'label_replace({expr}, "stage", "{name}", "", "")'


DASHBOARD = Dashboard(
    id="chaos",
    title="Chaos",
    title_zh="混沌实验",
    description="Experiments: injected, detected, healed, missed, and what the users saw of it.",
    variables=(MODEL,),
    rows=(
        Row(
            "The experiment",
            "实验",
            (
                Panel(
                    id="running",
                    title="Experiment",
                    title_zh="实验状态",
                    description="Whether an experiment runs now.",
                    unit=Unit.STATE,
                    queries=(largest(metrics.CHAOS_RUNNING, legend="chaos"),),
                    kind=Kind.STAT,
                    no_value="No experiment has run",
                    runbook="chaos_running",
                    values=RUNS,
                    width=4,
                    height=5,
                ),
                Panel(
                    id="in_place",
                    title="Faults in place",
                    title_zh="生效中的故障",
                    description="Faults that were injected and are not shown to be gone yet.",
                    unit=Unit.NUMBER,
                    queries=(total(metrics.CHAOS_ACTIVE, legend="in place"),),
                    kind=Kind.STAT,
                    no_value="No experiment has run",
                    runbook="chaos_running",
                    thresholds=(Threshold(1, Level.NOTE),),
                    width=4,
                    height=5,
                ),
                Panel(
                    id="injected",
                    title="Injected",
                    title_zh="已注入",
                    description="Faults that left evidence of having fired, since the hub's start.",
                    unit=Unit.NUMBER,
                    queries=(total(metrics.FAULTS_INJECTED, legend="injected"),),
                    kind=Kind.STAT,
                    no_value="No experiment has run",
                    runbook="chaos_running",
                    base=Level.IDLE,
                    thresholds=(Threshold(1, Level.NOTE),),
                    width=4,
                    height=5,
                ),
                Panel(
                    id="not_detected",
                    title="Not detected",
                    title_zh="未检出",
                    description="Injected minus detected. A fault counts until its detector has "
                    "spoken: judge it when the experiment has ended.",
                    unit=Unit.NUMBER,
                    queries=(
                        raw(
                            f"sum({select(metrics.FAULTS_INJECTED)})"
                            f" - sum({select(metrics.FAULTS_DETECTED)})",
                            "not detected",
                        ),
                    ),
                    kind=Kind.STAT,
                    no_value="No experiment has run",
                    runbook="blind",
                    thresholds=(Threshold(1, Level.WARN),),
                    minimum=None,
                    width=4,
                    height=5,
                ),
                Panel(
                    id="not_healed",
                    title="Not healed",
                    title_zh="未恢复",
                    description="Injected minus shown to be gone. `tocsin chaos heal --all` takes "
                    "away what a killed run left.",
                    unit=Unit.NUMBER,
                    queries=(
                        raw(
                            f"sum({select(metrics.FAULTS_INJECTED)})"
                            f" - sum({select(metrics.FAULTS_HEALED)})",
                            "not healed",
                        ),
                    ),
                    kind=Kind.STAT,
                    no_value="No experiment has run",
                    runbook="chaos_running",
                    thresholds=(Threshold(1, Level.WARN),),
                    minimum=None,
                    width=4,
                    height=5,
                ),
                Panel(
                    id="false_alarms",
                    title="False alarms",
                    title_zh="误报",
                    description="Alarms during an experiment that no injected fault explains: "
                    "either a check is too strict or this machine has a fault of its own.",
                    unit=Unit.NUMBER,
                    queries=(total(metrics.FALSE_ALARMS, legend="false alarms"),),
                    kind=Kind.STAT,
                    no_value="No experiment has run",
                    runbook="chaos_running",
                    thresholds=ANY_IS_BAD,
                    width=4,
                    height=5,
                ),
            ),
        ),
        Row(
            "By fault",
            "按故障",
            (
                Panel(
                    id="timeline",
                    title="Faults in place, over time",
                    title_zh="故障时间线",
                    description="When each fault was in place. The same times are annotated on "
                    "every dashboard.",
                    unit=Unit.STATE,
                    queries=(largest(metrics.CHAOS_ACTIVE, by=("fault",)),),
                    kind=Kind.STATE,
                    no_value="No experiment has run",
                    runbook="chaos_running",
                    base=Level.IDLE,
                    thresholds=(Threshold(1, Level.NOTE),),
                    width=12,
                    height=9,
                ),
                Panel(
                    id="by_fault",
                    title="Injected, detected, healed",
                    title_zh="注入、检出与恢复",
                    description="Three numbers a fault; equal ones are what you want to see.",
                    unit=Unit.NUMBER,
                    queries=(
                        raw(
                            " or ".join(
                                (
                                    _stage(_INJECTED, "injected"),
                                    _stage(_DETECTED, "detected"),
                                    _stage(_HEALED, "healed"),
                                )
                            ),
                            "{{fault}} {{stage}}",
                            instant=True,
                        ),
                    ),
                    kind=Kind.TABLE,
                    no_value="No experiment has run",
                    runbook="chaos_running",
                    width=12,
                    height=9,
                ),
                Panel(
                    id="detection",
                    title="Time to detection",
                    title_zh="检出耗时",
                    description="From the injection to the first detector.",
                    unit=Unit.SECONDS,
                    queries=quantiles(metrics.CHAOS_DETECTION, 0.5, 0.99),
                    kind=Kind.TIMESERIES,
                    no_value="No fault was detected in the range shown",
                    runbook="blind",
                    thresholds=(Threshold(3, Level.WARN),),
                    width=12,
                ),
                Panel(
                    id="detection_spread",
                    title="Time to detection, spread",
                    title_zh="检出耗时分布",
                    description="How many detections fell into each span of time.",
                    unit=Unit.SECONDS,
                    queries=(buckets(metrics.CHAOS_DETECTION),),
                    kind=Kind.HEATMAP,
                    no_value="No fault was detected in the range shown",
                    runbook="blind",
                    width=12,
                ),
            ),
        ),
        Row(
            "What users saw of it",
            "用户所见",
            (
                Panel(
                    id="outcomes",
                    title="Requests by outcome",
                    title_zh="请求结果",
                    description="A request that was refused was contained. A wrong answer is not a "
                    "series: the verdict of the run tells, by comparison with golden answers.",
                    unit=Unit.REQUESTS_PER_SECOND,
                    queries=(rate(metrics.REQUESTS, by=("outcome",)),),
                    kind=Kind.TIMESERIES,
                    no_value="No request has arrived yet",
                    runbook="error_budget_burn_fast",
                    stacked=True,
                ),
                Panel(
                    id="causes",
                    title="What the recovery did",
                    title_zh="恢复结论",
                    description="What the recovery ladder found out about the alarms.",
                    unit=Unit.NUMBER,
                    queries=(increase(metrics.CAUSES, by=("cause",)),),
                    kind=Kind.BAR,
                    no_value="No replica has reported yet",
                    runbook="unresolved_failure",
                ),
                Panel(
                    id="reproductions",
                    title="Reproductions",
                    title_zh="复现",
                    description="Reproductions that were written and run. Not reproduced means "
                    "that the recorded call alone does not fail: replay it at model level.",
                    unit=Unit.NUMBER,
                    queries=(total(metrics.REPRO_RUNS, by=("result",)),),
                    kind=Kind.BAR,
                    no_value="No reproduction has been run",
                    runbook="semantic_failure",
                ),
            ),
        ),
    ),
)
