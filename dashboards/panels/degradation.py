"""What serves instead of what should, since when, and what that costs."""

from tocsin.core import metrics
from tocsin.dashboards.panel import Dashboard, Kind, Level, Panel, Row, Threshold, Unit, ValueText
from tocsin.dashboards.panels.choices import IN_USE, MODEL, OPERATOR, REPLICA, UP_DOWN
from tocsin.dashboards.query import (
    increase,
    largest,
    mean,
    quantile,
    rate,
    ratio,
    raw,
    select,
    total,
)

_CIRCUIT = "operator, backend, replica"
_CIRCUIT_STATE = (
    f"2 * max by ({_CIRCUIT}) ({select(metrics.BREAKER_STATE, {'state': 'open'})})"
    f" + max by ({_CIRCUIT}) ({select(metrics.BREAKER_STATE, {'state': 'half_open'})})"
)
_STATES = (
    ValueText(0, "closed", "闭合", Level.OK),
    ValueText(1, "half open: one try", "半开:试一次", Level.WARN),
    ValueText(2, "open: the fallback serves", "断开:备用后端服务", Level.BAD),
)

DASHBOARD = Dashboard(
    id="degradation",
    title="Degradation",
    title_zh="降级",
    description="Breakers, backends and switches: what serves instead of what should, and its "
    "price.",
    variables=(MODEL, OPERATOR, REPLICA),
    rows=(
        Row(
            "Who serves",
            "由谁服务",
            (
                Panel(
                    id="breaker_state",
                    title="Circuits",
                    title_zh="熔断器状态",
                    description="State of each backend's circuit on each replica.",
                    unit=Unit.STATE,
                    queries=(raw(_CIRCUIT_STATE, "{{operator}} {{backend}} {{replica}}"),),
                    kind=Kind.STATE,
                    no_value="No replica has reported its circuits yet",
                    runbook="breaker_open",
                    thresholds=(Threshold(1, Level.WARN), Threshold(2, Level.BAD)),
                    values=_STATES,
                    width=12,
                ),
                Panel(
                    id="backend_in_use",
                    title="Backend that serves",
                    title_zh="当前后端",
                    description="The backend that each replica uses.",
                    unit=Unit.STATE,
                    queries=(
                        largest(metrics.BACKEND_IN_USE, by=("operator", "backend", "replica")),
                    ),
                    kind=Kind.STATE,
                    no_value="No replica has reported its backends yet",
                    runbook="breaker_open",
                    base=Level.IDLE,
                    thresholds=(Threshold(1, Level.OK),),
                    values=IN_USE,
                    width=12,
                ),
                Panel(
                    id="replicas",
                    title="Replicas",
                    title_zh="副本状态",
                    description="Whether each replica's process lives and steps.",
                    unit=Unit.STATE,
                    queries=(largest(metrics.REPLICA_UP, by=("replica",)),),
                    kind=Kind.STATE,
                    no_value="No hub is scraped: see the observer's dashboard",
                    runbook="replica_down",
                    base=Level.BAD,
                    thresholds=(Threshold(1, Level.OK),),
                    values=UP_DOWN,
                    width=12,
                ),
                Panel(
                    id="transitions",
                    title="Changes of circuits",
                    title_zh="熔断器变化",
                    description="Forced and allowed are orders: of the exact P0 window, of "
                    "`/degrade`, or of a person. The others are the breaker's own.",
                    unit=Unit.NUMBER,
                    queries=(increase(metrics.BREAKER_TRANSITIONS, by=("operator", "to")),),
                    kind=Kind.BAR,
                    no_value="No replica has reported its circuits yet",
                    runbook="breaker_open",
                    width=12,
                ),
            ),
        ),
        Row(
            "Since when, and at what price",
            "时长与代价",
            (
                Panel(
                    id="degraded_time",
                    title="Time degraded",
                    title_zh="降级时长",
                    description="Replica time, in the range shown, served by anything but the "
                    "preferred backend.",
                    unit=Unit.SECONDS,
                    queries=(increase(metrics.DEGRADED_SECONDS, by=("operator",)),),
                    kind=Kind.STAT,
                    no_value="No replica has reported its circuits yet",
                    runbook="breaker_open",
                    thresholds=(Threshold(1, Level.WARN),),
                ),
                Panel(
                    id="degraded_share",
                    title="Share of replicas degraded",
                    title_zh="降级副本占比",
                    description="Replica seconds per second served by a fallback, over the "
                    "replicas that are up.",
                    unit=Unit.RATIO,
                    queries=(
                        ratio(
                            rate(metrics.DEGRADED_SECONDS, legend="degraded"),
                            total(metrics.REPLICA_UP),
                            "degraded",
                        ),
                    ),
                    kind=Kind.TIMESERIES,
                    no_value="No replica is up",
                    runbook="breaker_open",
                    thresholds=(Threshold(0.01, Level.WARN),),
                    maximum=1.0,
                ),
                Panel(
                    id="token_time_checked",
                    title="Time per token, checked and unchecked",
                    title_zh="每词元耗时:有无检查",
                    description="Mean time between tokens of answers with and without verdicts "
                    "behind them. Unchecked has data only while checks are off.",
                    unit=Unit.SECONDS,
                    queries=(
                        mean(
                            metrics.TIME_PER_OUTPUT_TOKEN,
                            by=("checked",),
                            legend="checked: {{checked}}",
                        ),
                    ),
                    kind=Kind.TIMESERIES,
                    no_value="No answer has ended in the range shown",
                    runbook="blind",
                    thresholds=(Threshold(0.2, Level.BAD),),
                ),
                Panel(
                    id="step_by_kind",
                    title="Step time, p99",
                    title_zh="单步耗时 p99",
                    description="A fallback backend is slower: the step shows it first. Compare "
                    "with the circuits above.",
                    unit=Unit.SECONDS,
                    queries=(quantile(metrics.STEP_DURATION, 0.99, by=("kind",)),),
                    kind=Kind.TIMESERIES,
                    no_value="No step has been made in the range shown",
                    runbook="breaker_open",
                ),
                Panel(
                    id="refused",
                    title="Requests refused or failed",
                    title_zh="被拒或失败的请求",
                    description="What degradation could not save: the client got an error with a "
                    "failure id.",
                    unit=Unit.REQUESTS_PER_SECOND,
                    queries=(
                        rate(
                            metrics.REQUESTS, by=("outcome",), where={"outcome": "failed|refused"}
                        ),
                    ),
                    kind=Kind.TIMESERIES,
                    no_value="No replica has reported yet",
                    runbook="error_budget_burn_slow",
                ),
                Panel(
                    id="unresolved",
                    title="Alarms that nothing helped",
                    title_zh="无法解决的告警",
                    description="The recovery ladder came to its end without a clean step.",
                    unit=Unit.NUMBER,
                    queries=(
                        increase(
                            metrics.CAUSES, where={"cause": "unresolved"}, legend="unresolved"
                        ),
                    ),
                    kind=Kind.STAT,
                    no_value="No replica has reported yet",
                    runbook="unresolved_failure",
                    thresholds=(Threshold(1, Level.BAD),),
                ),
            ),
        ),
    ),
)
