"""Is the service right, and is it fast? One look for whoever was called."""

from tocsin.core import metrics
from tocsin.dashboards.panel import Dashboard, Kind, Level, Panel, Row, Threshold, Unit
from tocsin.dashboards.panels.choices import ANY_IS_BAD, MODEL, OPERATOR, REPLICA, RUNS
from tocsin.dashboards.query import (
    increase,
    largest,
    quantiles,
    rate,
    ratio,
    raw,
    select,
    time_spent,
    total,
)
from tocsin.dashboards.recordings import OBJECTIVE

_BAD_SHARE = ratio(
    increase(metrics.REQUESTS, where={"outcome": "failed|refused"}),
    increase(metrics.REQUESTS, where={"outcome": "ok|failed|refused"}),
    "bad",
)

DASHBOARD = Dashboard(
    id="overview",
    title="Overview",
    title_zh="总览",
    description="Is the service right, and is it fast? Start here when an alert has called you.",
    variables=(MODEL, OPERATOR, REPLICA),
    rows=(
        Row(
            "Right now",
            "当前",
            (
                Panel(
                    id="alerts_firing",
                    title="Alerts firing",
                    title_zh="正在触发的告警",
                    description="Tocsin's alerts that fire now, by priority: P0 pages, P1 opens a "
                    "ticket, P2 goes to the weekly digest.",
                    unit=Unit.NUMBER,
                    queries=(
                        raw(
                            'count(ALERTS{alertstate="firing", priority="P0"}) or vector(0)',
                            "P0",
                            instant=True,
                        ),
                        raw(
                            'count(ALERTS{alertstate="firing", priority="P1"}) or vector(0)',
                            "P1",
                            instant=True,
                        ),
                    ),
                    kind=Kind.STAT,
                    no_value="No answer from Prometheus: its rules are not loaded",
                    runbook="operator_failing",
                    thresholds=ANY_IS_BAD,
                    width=4,
                    height=5,
                ),
                Panel(
                    id="incidents",
                    title="Incidents in the range shown",
                    title_zh="所选时间内的事件",
                    description="Failures by the gravest priority among their findings. Each one "
                    "was contained before its tokens left.",
                    unit=Unit.NUMBER,
                    queries=(increase(metrics.INCIDENTS, by=("priority",)),),
                    kind=Kind.STAT,
                    no_value="No replica has reported yet",
                    runbook="operator_failing",
                    thresholds=(Threshold(1, Level.WARN),),
                    width=4,
                    height=5,
                ),
                Panel(
                    id="error_budget_left",
                    title="Error budget left",
                    title_zh="剩余错误预算",
                    description="Share of the range's error budget (1 request in 1,000 may fail or "
                    "be refused) that is not used up; below 0 the objective is missed.",
                    unit=Unit.RATIO,
                    queries=(
                        raw(f"1 - {_BAD_SHARE.expr} / {1 - OBJECTIVE:g}", "left", instant=True),
                    ),
                    kind=Kind.STAT,
                    no_value="No request has ended in the range shown",
                    runbook="error_budget_burn_fast",
                    base=Level.BAD,
                    thresholds=(Threshold(0, Level.WARN), Threshold(0.5, Level.OK)),
                    minimum=None,
                    maximum=1.0,
                    width=4,
                    height=5,
                ),
                Panel(
                    id="replicas_up",
                    title="Replicas up",
                    title_zh="在线副本",
                    description="Replicas whose process lives and steps. A lost one is counted as "
                    "0 for five minutes.",
                    unit=Unit.NUMBER,
                    queries=(total(metrics.REPLICA_UP, legend="up"),),
                    kind=Kind.STAT,
                    no_value="No hub is scraped: see the observer's dashboard",
                    runbook="replica_down",
                    base=Level.BAD,
                    thresholds=(Threshold(1, Level.OK),),
                    width=3,
                    height=5,
                ),
                Panel(
                    id="breakers_open",
                    title="Breakers open",
                    title_zh="已熔断",
                    description="Circuits that are open: those operators are served by their "
                    "fallback backend.",
                    unit=Unit.NUMBER,
                    queries=(total(metrics.BREAKER_STATE, where={"state": "open"}, legend="open"),),
                    kind=Kind.STAT,
                    no_value="No replica has reported its circuits yet",
                    runbook="breaker_open",
                    thresholds=(Threshold(1, Level.WARN),),
                    width=3,
                    height=5,
                ),
                Panel(
                    id="chaos_running",
                    title="Chaos",
                    title_zh="混沌实验",
                    description="Whether an experiment is breaking things on purpose: alerts that "
                    "fire meanwhile may be a drill.",
                    unit=Unit.STATE,
                    queries=(largest(metrics.CHAOS_RUNNING, legend="chaos"),),
                    kind=Kind.STAT,
                    no_value="No experiment has run",
                    runbook="chaos_running",
                    values=RUNS,
                    width=3,
                    height=5,
                ),
                Panel(
                    id="unverified_tokens",
                    title="Tokens with no verdict",
                    title_zh="未经检查的词元",
                    description="Tokens that left with no verdict behind them in the range shown. "
                    "Anything but 0 means that somebody turned checks off.",
                    unit=Unit.NUMBER,
                    queries=(increase(metrics.UNVERIFIED_TOKENS, legend="unverified"),),
                    kind=Kind.STAT,
                    no_value="No replica has reported yet",
                    runbook="unverified_tokens",
                    thresholds=ANY_IS_BAD,
                    width=3,
                    height=5,
                ),
            ),
        ),
        Row(
            "What people get",
            "用户所见",
            (
                Panel(
                    id="requests",
                    title="Requests by outcome",
                    title_zh="请求结果",
                    description="How requests end. Refused is a check that could not be repaired: "
                    "the client got an error with a failure id instead of a wrong answer.",
                    unit=Unit.REQUESTS_PER_SECOND,
                    queries=(rate(metrics.REQUESTS, by=("outcome",)),),
                    kind=Kind.TIMESERIES,
                    no_value="No request has arrived yet",
                    runbook="error_budget_burn_fast",
                    stacked=True,
                ),
                Panel(
                    id="request_duration",
                    title="Answer time",
                    title_zh="回答耗时",
                    description="From arrival to the end of the answer. The objective is 30 s.",
                    unit=Unit.SECONDS,
                    queries=quantiles(metrics.REQUEST_DURATION, 0.5, 0.99),
                    kind=Kind.TIMESERIES,
                    no_value="No answer has ended in the range shown",
                    runbook="error_budget_burn_fast",
                    thresholds=(Threshold(30, Level.BAD),),
                ),
                Panel(
                    id="time_to_first_token",
                    title="Time to the first token",
                    title_zh="首词元耗时",
                    description="From arrival to the first token. The objective is 2 s.",
                    unit=Unit.SECONDS,
                    queries=quantiles(metrics.TIME_TO_FIRST_TOKEN, 0.5, 0.99),
                    kind=Kind.TIMESERIES,
                    no_value="No first token in the range shown",
                    runbook="error_budget_burn_fast",
                    thresholds=(Threshold(2, Level.BAD),),
                ),
                Panel(
                    id="time_per_output_token",
                    title="Time per token",
                    title_zh="每词元耗时",
                    description="Mean time between the tokens of one answer. The objective is "
                    "0.2 s.",
                    unit=Unit.SECONDS,
                    queries=quantiles(metrics.TIME_PER_OUTPUT_TOKEN, 0.5, 0.99),
                    kind=Kind.TIMESERIES,
                    no_value="No answer has ended in the range shown",
                    runbook="error_budget_burn_fast",
                    thresholds=(Threshold(0.2, Level.BAD),),
                ),
                Panel(
                    id="client_backlog",
                    title="Waiting for clients that do not read",
                    title_zh="客户端未读积压",
                    description="Bytes that wait in the kernel for clients of running streams "
                    "whose window is closed. After five seconds such a stream is ended.",
                    unit=Unit.BYTES,
                    queries=(total(metrics.CLIENT_BACKLOG, legend="waiting"),),
                    kind=Kind.TIMESERIES,
                    no_value="No gateway is scraped",
                    runbook="error_budget_burn_slow",
                ),
                Panel(
                    id="clients",
                    title="Clients dropped, answers given again",
                    title_zh="断开的客户端与重放的回答",
                    description="Streams that were ended because nobody read them, and requests "
                    "that were answered with an earlier answer of their Idempotency-Key.",
                    unit=Unit.NUMBER,
                    queries=(
                        increase(metrics.CLIENTS_DROPPED, legend="dropped"),
                        increase(metrics.IDEMPOTENT_REPLAYS, legend="given again"),
                    ),
                    kind=Kind.TIMESERIES,
                    no_value="No gateway is scraped",
                    runbook="error_budget_burn_slow",
                ),
                Panel(
                    id="service_incidents",
                    title="What serving noticed about itself",
                    title_zh="服务自检事件",
                    description="Slow, lost and stalled replicas, clocks that jumped, roads and "
                    "control planes that were away, in the range shown. Answers stay right.",
                    unit=Unit.NUMBER,
                    queries=(
                        increase(metrics.SERVICE_INCIDENTS, ("detector",), legend="{{detector}}"),
                    ),
                    kind=Kind.TIMESERIES,
                    no_value="No board is scraped",
                    runbook="service_incident",
                ),
                Panel(
                    id="tokens",
                    title="Tokens",
                    title_zh="词元吞吐",
                    description="Tokens released and prompt tokens taken in.",
                    unit=Unit.PER_SECOND,
                    queries=(
                        rate(metrics.TOKENS, legend="released"),
                        rate(metrics.PROMPT_TOKENS, legend="prompt"),
                    ),
                    kind=Kind.TIMESERIES,
                    no_value="No token has been released yet",
                    runbook="stalled",
                ),
                Panel(
                    id="forward_progress",
                    title="Seconds since a replica's last token",
                    title_zh="距上个词元的秒数",
                    description="A frozen replica still looks alive to its supervisor; it shows "
                    "here. An idle one shows here too: compare with the requests that run.",
                    unit=Unit.SECONDS,
                    queries=(
                        raw(
                            f"time() - max by (replica) ({select(metrics.LAST_TOKEN)} > 0)",
                            "{{replica}}",
                        ),
                    ),
                    kind=Kind.TIMESERIES,
                    no_value="No replica has decoded yet",
                    runbook="stalled",
                ),
            ),
        ),
        Row(
            "What the checks see",
            "检查所见",
            (
                Panel(
                    id="checks",
                    title="Checks",
                    title_zh="检查次数",
                    description="Check evaluations by result. None at all while tokens leave means "
                    "that the service is blind.",
                    unit=Unit.PER_SECOND,
                    queries=(rate(metrics.CHECKS, by=("result",)),),
                    kind=Kind.TIMESERIES,
                    no_value="No check has run: is the profile `off`?",
                    runbook="blind",
                ),
                Panel(
                    id="failures_by_operator",
                    title="Failures by operator",
                    title_zh="各算子失败",
                    description="Recorded failures. The dots are exemplars: each leads to a trace "
                    "and to a failure id for `tocsin reproduce`.",
                    unit=Unit.PER_SECOND,
                    queries=(rate(metrics.CHECK_FAILURES, by=("operator",)),),
                    kind=Kind.TIMESERIES,
                    no_value="No failure has been recorded",
                    runbook="operator_failing",
                ),
                Panel(
                    id="check_overhead",
                    title="Time spent on verdicts",
                    title_zh="检查开销占比",
                    description="Share of the engine's step time that goes into reading verdicts "
                    "and settling them.",
                    unit=Unit.RATIO,
                    queries=(
                        ratio(
                            time_spent(metrics.CHECK_DURATION),
                            time_spent(metrics.STEP_DURATION),
                            "verdicts / steps",
                        ),
                    ),
                    kind=Kind.TIMESERIES,
                    no_value="No step has been made in the range shown",
                    runbook="blind",
                    thresholds=(Threshold(0.05, Level.WARN),),
                ),
            ),
        ),
    ),
)
