"""What each operator's checks see: failures, near misses, and what was found to be the cause."""

from tocsin.core import metrics
from tocsin.dashboards.panel import Dashboard, Kind, Level, Panel, Row, Threshold, Unit
from tocsin.dashboards.panels.choices import MODEL, OPERATOR, REPLICA
from tocsin.dashboards.query import (
    buckets,
    increase,
    largest,
    quantiles,
    rate,
    ratio,
    raw,
    select,
    smallest,
    total,
)

P0_LIMIT = 10
"""More failures of one operator within 60 s than this are a P0."""

RATE_LOW, RATE_HIGH = 0.001, 0.05
"""The marks of `tocsin scan --plan`; a test holds them to its own."""

DASHBOARD = Dashboard(
    id="operators",
    title="Operators",
    title_zh="算子",
    description="Which operator fails which check, how often, and what the recovery found out.",
    variables=(MODEL, OPERATOR, REPLICA),
    rows=(
        Row(
            "All chosen operators",
            "所选算子",
            (
                Panel(
                    id="window",
                    title="Failures within 60 s, fleet",
                    title_zh="60 秒内失败数(全体)",
                    description="The worst exact count within any 60 s of the last two minutes, "
                    "over all nodes. The 11th is a P0: the operator is degraded in that very step.",
                    unit=Unit.NUMBER,
                    queries=(
                        largest(
                            metrics.FAILURES_WINDOW, by=("operator",), where={"scope": "fleet"}
                        ),
                    ),
                    kind=Kind.TIMESERIES,
                    no_value="No hub has reported to the board yet",
                    runbook="operator_failing",
                    thresholds=(Threshold(1, Level.WARN), Threshold(P0_LIMIT + 1, Level.BAD)),
                    width=12,
                ),
                Panel(
                    id="failures_by_layer",
                    title="Failures by layer",
                    title_zh="各层失败",
                    description="Recorded failures by layer of checks: numerical, memory, state, "
                    "semantic.",
                    unit=Unit.PER_SECOND,
                    queries=(rate(metrics.CHECK_FAILURES, by=("layer",)),),
                    kind=Kind.TIMESERIES,
                    no_value="No failure has been recorded",
                    runbook="semantic_failure",
                    width=12,
                ),
                Panel(
                    id="worst_checks",
                    title="Which checks failed",
                    title_zh="失败的检查",
                    description="Failures in the range shown, the most frequent first, with the "
                    "command that writes a reproduction of the operator's latest failure.",
                    unit=Unit.NUMBER,
                    queries=(
                        raw(
                            "label_replace(topk(20, sum by (operator, layer, check, priority) "
                            f"(increase({select(metrics.CHECK_FAILURES)}[$__range]))), "
                            '"reproduce", "tocsin reproduce latest:$1", "operator", "(.+)")',
                            "{{operator}} {{check}}",
                            instant=True,
                        ),
                    ),
                    kind=Kind.TABLE,
                    no_value="No failure has been recorded",
                    runbook="operator_failing",
                    width=24,
                    height=8,
                ),
                Panel(
                    id="results",
                    title="Checks by result",
                    title_zh="检查结果",
                    description="An error is a check that could not be computed; it counts as an "
                    "alarm for the tokens and is a bug to report.",
                    unit=Unit.PER_SECOND,
                    queries=(rate(metrics.CHECKS, by=("result",)),),
                    kind=Kind.TIMESERIES,
                    no_value="No check has run: is the profile `off`?",
                    runbook="blind",
                ),
                Panel(
                    id="checks_by_operator",
                    title="Checks by operator",
                    title_zh="各算子检查次数",
                    description="Check evaluations. An operator that disappears here is no longer "
                    "looked at.",
                    unit=Unit.PER_SECOND,
                    queries=(rate(metrics.CHECKS, by=("operator",)),),
                    kind=Kind.TIMESERIES,
                    no_value="No check has run: is the profile `off`?",
                    runbook="blind",
                ),
                Panel(
                    id="incidents_by_priority",
                    title="Incidents by priority",
                    title_zh="各级事件",
                    description="Failures by the gravest priority among their findings.",
                    unit=Unit.PER_SECOND,
                    queries=(rate(metrics.INCIDENTS, by=("priority",)),),
                    kind=Kind.TIMESERIES,
                    no_value="No replica has reported yet",
                    runbook="semantic_failure",
                    stacked=True,
                ),
                Panel(
                    id="exception_rate",
                    title="Exception rate of the sample",
                    title_zh="抽样请求的异常率",
                    description="Alarms over evaluations of each operator, in steps that hold a "
                    "request of the sample (`sample: 1%`). Below 0.1 % the numerical layer is "
                    "enough, above 5 % all four are due: `tocsin scan --plan` says which, and "
                    "whether there are evaluations enough to say so.",
                    unit=Unit.RATIO,
                    queries=(
                        ratio(
                            rate(
                                metrics.SAMPLED_CHECKS, by=("operator",), where={"result": "alarm"}
                            ),
                            rate(metrics.SAMPLED_CHECKS, by=("operator",)),
                            "{{operator}}",
                        ),
                    ),
                    kind=Kind.TIMESERIES,
                    no_value="No request of a sample was served: is `sample` 0?",
                    runbook="numerical_drift",
                    thresholds=(
                        Threshold(RATE_LOW, Level.WARN),
                        Threshold(RATE_HIGH, Level.BAD),
                    ),
                    width=12,
                ),
                Panel(
                    id="nonfinite",
                    title="NaN and infinite values",
                    title_zh="非有限值",
                    description="Values counted in the tensors of recorded failures.",
                    unit=Unit.PER_SECOND,
                    queries=(rate(metrics.NONFINITE, by=("operator", "kind")),),
                    kind=Kind.TIMESERIES,
                    no_value="No failure has been recorded",
                    runbook="numerical_drift",
                    width=12,
                ),
                Panel(
                    id="headroom",
                    title="Largest residual over its limit",
                    title_zh="最大残差与限值之比",
                    description="The nearest that a check came to alarming without doing so. A "
                    "curve that climbs towards 100 % is a drift that will soon be an alarm.",
                    unit=Unit.RATIO,
                    queries=(largest(metrics.RATIO_PEAK, by=("layer",)),),
                    kind=Kind.TIMESERIES,
                    no_value="No check has run: is the profile `off`?",
                    runbook="headroom_low",
                    thresholds=(Threshold(0.8, Level.WARN), Threshold(1, Level.BAD)),
                    width=12,
                ),
                Panel(
                    id="causes",
                    title="What it was",
                    title_zh="故障原因",
                    description="What the recovery ladder found out: transient (gone when run "
                    "again), persistent (gone on another backend), state (a page or weight had "
                    "changed), legitimate (refuted), unresolved (the request was refused).",
                    unit=Unit.NUMBER,
                    queries=(increase(metrics.CAUSES, by=("cause",)),),
                    kind=Kind.BAR,
                    no_value="No replica has reported yet",
                    runbook="unresolved_failure",
                    width=12,
                ),
            ),
        ),
        Row(
            "Cost of looking",
            "检查的代价",
            (
                Panel(
                    id="check_duration",
                    title="Time to settle a verdict",
                    title_zh="结算判决耗时",
                    description="Time of one step that goes into reading the verdict and settling "
                    "it.",
                    unit=Unit.SECONDS,
                    queries=quantiles(metrics.CHECK_DURATION, 0.5, 0.99),
                    kind=Kind.TIMESERIES,
                    no_value="No step has been made in the range shown",
                    runbook="blind",
                ),
                Panel(
                    id="check_duration_spread",
                    title="Time to settle a verdict, spread",
                    title_zh="结算判决耗时分布",
                    description="A second band that appears is recovery at work: a step that was "
                    "run again costs more.",
                    unit=Unit.SECONDS,
                    queries=(buckets(metrics.CHECK_DURATION),),
                    kind=Kind.HEATMAP,
                    no_value="No step has been made in the range shown",
                    runbook="blind",
                ),
                Panel(
                    id="step_duration",
                    title="Time of a step",
                    title_zh="单步耗时",
                    description="One engine step, checks included.",
                    unit=Unit.SECONDS,
                    queries=(
                        *quantiles(metrics.STEP_DURATION, 0.5, where={"kind": "decode"}),
                        *quantiles(metrics.STEP_DURATION, 0.99, where={"kind": "decode"}),
                    ),
                    kind=Kind.TIMESERIES,
                    no_value="No step has been made in the range shown",
                    runbook="blind",
                ),
                Panel(
                    id="checks_enabled",
                    title="Checks in force",
                    title_zh="生效的检查",
                    description="Checks in force by layer, on the replica that has fewest.",
                    unit=Unit.NUMBER,
                    queries=(smallest(metrics.CHECK_ENABLED, by=("layer",)),),
                    kind=Kind.TIMESERIES,
                    no_value="No replica has reported yet",
                    runbook="blind",
                    width=12,
                ),
                Panel(
                    id="switch_changes",
                    title="Changes of what is checked",
                    title_zh="检查开关变更",
                    description="By who made them: a person (api), the system itself (auto), or "
                    "the configuration at start.",
                    unit=Unit.NUMBER,
                    queries=(total(metrics.SWITCHES, by=("actor",)),),
                    kind=Kind.TIMESERIES,
                    no_value="No replica has reported yet",
                    runbook="blind",
                    width=12,
                ),
            ),
        ),
        Row(
            "$operator",
            "$operator",
            (
                Panel(
                    id="one_window",
                    title="Within 60 s, by node and fleet",
                    title_zh="60 秒内失败数",
                    description="The exact window of this operator; the 11th failure is a P0.",
                    unit=Unit.NUMBER,
                    queries=(largest(metrics.FAILURES_WINDOW, by=("scope",)),),
                    kind=Kind.TIMESERIES,
                    no_value="No failure window is reported for this operator",
                    runbook="operator_failing",
                    thresholds=(Threshold(1, Level.WARN), Threshold(P0_LIMIT + 1, Level.BAD)),
                    width=12,
                ),
                Panel(
                    id="one_checks",
                    title="Failures by check",
                    title_zh="各检查失败",
                    description="Recorded failures of this operator, by the check that saw them.",
                    unit=Unit.PER_SECOND,
                    queries=(rate(metrics.CHECK_FAILURES, by=("check",)),),
                    kind=Kind.TIMESERIES,
                    no_value="No failure has been recorded for this operator",
                    runbook="semantic_failure",
                    width=12,
                ),
            ),
            repeat="operator",
        ),
    ),
)
