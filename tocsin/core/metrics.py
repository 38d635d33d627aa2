"""The metric catalogue: name, type, labels, values and help of every series that Tocsin exports.

Counters carry no `replica`: a node's hub adds its living and dead processes up, so that a counter
never falls and no restart makes new series. Gauges that belong to one process carry it.
Ids, shapes and transformer depths are never labels: they are in the journal and in exemplars.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tocsin.core.history import NOTICED_BY
from tocsin.core.terms import BreakerState, Cause, Layer, Priority


class MetricType(StrEnum):
    """Prometheus metric types in use."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One declared metric; counters end in `_total`, units are base units.

    Attributes:
        labels: names of the labels, in the order of their values.
        values: the values of those labels that are known beforehand. The others (`model`,
            `operator`, `check`, …) come from the declarations of checks and faults.
        buckets: upper edges of a histogram, without infinity; they include the objectives.
    """

    name: str
    type: MetricType
    help: str
    labels: tuple[str, ...] = ()
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    buckets: tuple[float, ...] = ()

    @property
    def series(self) -> tuple[str, ...]:
        """Names under which a query finds it: a histogram has three."""
        if self.type is not MetricType.HISTOGRAM:
            return (self.name,)
        return tuple(f"{self.name}_{part}" for part in ("bucket", "count", "sum"))


RESULTS = ("ok", "alarm", "error")
OUTCOMES = ("ok", "failed", "refused", "rejected", "aborted")
DECISIONS = ("written", "suppressed", "sampled_full")
ACTORS = ("api", "auto", "config")
RECEIVERS = (
    "wecom_robot",
    "dingtalk",
    "slack",
    "pagerduty",
    "webhook",
    "apprise",
    "alertmanager",
)
DELIVERY_RESULTS = ("ok", "retried", "rate_limited", "dead_letter")
REPRO_RESULTS = ("reproduced", "not_reproduced", "error")
_PRIORITIES = tuple(map(str, Priority))
_LAYERS = tuple(map(str, Layer))

LATENCY_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""The objectives (0.2 s a token, 2 s to the first, 30 s for all) are edges."""
_CHECK_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
_DETECTION_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)

_COUNTER, _GAUGE, _HISTOGRAM = MetricType.COUNTER, MetricType.GAUGE, MetricType.HISTOGRAM

# --- checks ---
CHECKS = Metric(
    "tocsin_checks_total",
    _COUNTER,
    "Check evaluations by result",
    ("model", "operator", "layer", "result"),
    {"result": RESULTS},
)
SAMPLED_CHECKS = Metric(
    "tocsin_sampled_checks_total",
    _COUNTER,
    "Check evaluations in steps that hold a request of the sample, which is checked in full: an "
    "operator's alarms over all of them are its exception rate",
    ("model", "operator", "layer", "result"),
    {"result": ("ok", "alarm")},
)
CHECK_FAILURES = Metric(
    "tocsin_check_failures_total",
    _COUNTER,
    "Recorded failures, one a finding; exemplars carry trace_id and failure_id",
    ("model", "operator", "layer", "check", "priority"),
)
FAILURES_WINDOW = Metric(
    "tocsin_operator_failures_window",
    _GAUGE,
    "Failures of an operator within any 60 s of the last two minutes, exact, the worst; "
    "scope is this node or the fleet",
    ("model", "operator", "scope"),
    {"scope": ("node", "fleet")},
)
INCIDENTS = Metric(
    "tocsin_priority_incidents_total",
    _COUNTER,
    "Failures by the gravest priority among their findings",
    ("model", "operator", "priority"),
    {"priority": _PRIORITIES},
)
CAUSES = Metric(
    "tocsin_failure_causes_total",
    _COUNTER,
    "What the recovery ladder found out about an alarm",
    ("model", "cause"),
    {"cause": tuple(map(str, Cause))},
)
NONFINITE = Metric(
    "tocsin_nonfinite_values_total",
    _COUNTER,
    "NaN and infinite values counted in the tensors of recorded failures",
    ("model", "operator", "kind"),
    {"kind": ("nan", "inf")},
)
RATIO_PEAK = Metric(
    "tocsin_check_ratio_peak",
    _GAUGE,
    "Largest residual over limit of the last half minute or more that did not alarm: the headroom "
    "left is 1 minus this",
    ("model", "layer", "replica"),
    {"layer": _LAYERS},
)
CHECK_DURATION = Metric(
    "tocsin_check_duration_seconds",
    _HISTOGRAM,
    "Time of one step spent reading the verdict and settling it",
    ("model",),
    buckets=_CHECK_BUCKETS,
)
STEP_DURATION = Metric(
    "tocsin_step_duration_seconds",
    _HISTOGRAM,
    "Time of one engine step, checks included",
    ("model", "kind"),
    {"kind": ("prefill", "decode")},
    buckets=(*_CHECK_BUCKETS, 2.5, 10.0),
)
CHECK_ENABLED = Metric(
    "tocsin_check_enabled",
    _GAUGE,
    "Checks in force on a replica, by layer",
    ("model", "layer", "replica"),
    {"layer": _LAYERS},
)
SWITCHES = Metric(
    "tocsin_check_switch_changes_total",
    _COUNTER,
    "Changes of what is checked, by who made them",
    ("model", "actor"),
    {"actor": ACTORS},
)

# --- degradation ---
BREAKER_STATE = Metric(
    "tocsin_breaker_state",
    _GAUGE,
    "1 for the state that a replica's circuit is in",
    ("model", "operator", "backend", "state", "replica"),
    {"operator": ("attention",), "state": tuple(map(str, BreakerState))},
)
BREAKER_TRANSITIONS = Metric(
    "tocsin_breaker_transitions_total",
    _COUNTER,
    "Changes of a circuit's state",
    ("model", "operator", "backend", "to"),
    {"operator": ("attention",), "to": (*map(str, BreakerState), "forced", "allowed")},
)
BACKEND_IN_USE = Metric(
    "tocsin_backend_in_use",
    _GAUGE,
    "1 for the backend that serves",
    ("model", "operator", "backend", "replica"),
    {"operator": ("attention",)},
)
DEGRADED_SECONDS = Metric(
    "tocsin_degraded_seconds_total",
    _COUNTER,
    "Seconds of replica time served by anything but the preferred backend",
    ("model", "operator"),
    {"operator": ("attention",)},
)

# --- serving ---
REQUESTS = Metric(
    "tocsin_requests_total",
    _COUNTER,
    "Requests by how they ended",
    ("model", "outcome"),
    {"outcome": OUTCOMES},
)
REQUEST_DURATION = Metric(
    "tocsin_request_duration_seconds",
    _HISTOGRAM,
    "From arrival to the end of the answer",
    ("model",),
    buckets=LATENCY_BUCKETS,
)
TIME_TO_FIRST_TOKEN = Metric(
    "tocsin_time_to_first_token_seconds",
    _HISTOGRAM,
    "From arrival to the first token",
    ("model",),
    buckets=LATENCY_BUCKETS,
)
TIME_PER_OUTPUT_TOKEN = Metric(
    "tocsin_time_per_output_token_seconds",
    _HISTOGRAM,
    "Mean time between the tokens of one answer; checked says whether verdicts stood behind it",
    ("model", "checked"),
    {"checked": ("true", "false")},
    buckets=LATENCY_BUCKETS,
)
TOKENS = Metric("tocsin_tokens_generated_total", _COUNTER, "Tokens released", ("model",))
PROMPT_TOKENS = Metric("tocsin_prompt_tokens_total", _COUNTER, "Prompt tokens taken in", ("model",))
UNVERIFIED_TOKENS = Metric(
    "tocsin_unverified_tokens_total",
    _COUNTER,
    "Tokens released with no verdict behind them; anything but 0 means that checks are off",
    ("model",),
)
RUNNING = Metric(
    "tocsin_requests_running", _GAUGE, "Requests in a slot of a replica", ("model", "replica")
)
WAITING = Metric(
    "tocsin_requests_waiting", _GAUGE, "Requests queued at a replica", ("model", "replica")
)
LAST_TOKEN = Metric(
    "tocsin_last_decode_timestamp_seconds",
    _GAUGE,
    "Unix time of the last decode step: forward progress",
    ("model", "replica"),
)
REPLICA_UP = Metric(
    "tocsin_replica_up",
    _GAUGE,
    "1 while a replica's process lives and steps, 0 for five minutes after it is lost",
    ("model", "replica"),
)
CLIENT_BACKLOG = Metric(
    "tocsin_client_backlog_bytes",
    _GAUGE,
    "Bytes that wait at this gateway's host for clients of running streams that do not read",
    ("model",),
)
CLIENTS_DROPPED = Metric(
    "tocsin_clients_dropped_total",
    _COUNTER,
    "Streams that were ended because their clients did not read",
    ("model",),
)
IDEMPOTENT_REPLAYS = Metric(
    "tocsin_idempotent_replays_total",
    _COUNTER,
    "Requests that were answered with the answer to an earlier one of the same Idempotency-Key",
    ("model",),
)
SERVICE_INCIDENTS = Metric(
    "tocsin_service_incidents_total",
    _COUNTER,
    "What serving noticed about itself: a replica that is slow or gone, a clock that jumped, …",
    ("detector",),
    {"detector": tuple(sorted(NOTICED_BY.values()))},
)

# --- memory ---
KV_USAGE = Metric(
    "tocsin_kv_cache_usage_ratio", _GAUGE, "Share of KV pages in use", ("model", "replica")
)
GENERATION_MISMATCHES = Metric(
    "tocsin_kv_cache_generation_mismatches_total",
    _COUNTER,
    "Failures of a KV page's owner or epoch",
    ("model",),
)
CHECKSUM_MISMATCHES = Metric(
    "tocsin_kv_cache_checksum_mismatches_total",
    _COUNTER,
    "Failures of a KV page's content sum",
    ("model",),
)
PAGES_QUARANTINED = Metric(
    "tocsin_kv_pages_quarantined_total", _COUNTER, "KV pages taken out and zeroed", ("model",)
)
PREEMPTIONS = Metric(
    "tocsin_kv_cache_preemptions_total",
    _COUNTER,
    "Requests that made room for others and were computed anew",
    ("model",),
)
WEIGHTS_REPAIRED = Metric(
    "tocsin_weight_tiles_repaired_total", _COUNTER, "Weight tiles copied anew", ("model",)
)
MEMORY_FREE = Metric(
    "tocsin_memory_free_bytes",
    _GAUGE,
    "Free memory of the device as the watermark reads it",
    ("model", "replica"),
)
WATERMARK_LEVEL = Metric(
    "tocsin_memory_watermark_level",
    _GAUGE,
    "0 all is well, 1 degraded for want of memory, 2 essential checks only",
    ("model", "replica"),
)

# --- chaos ---
FAULTS_INJECTED = Metric(
    "tocsin_chaos_faults_injected_total", _COUNTER, "Faults that left evidence", ("fault",)
)
FAULTS_DETECTED = Metric(
    "tocsin_chaos_faults_detected_total",
    _COUNTER,
    "Injected faults that a detector named",
    ("fault",),
)
FAULTS_HEALED = Metric(
    "tocsin_chaos_faults_healed_total", _COUNTER, "Injected faults shown to be gone", ("fault",)
)
CHAOS_DETECTION = Metric(
    "tocsin_chaos_detection_seconds",
    _HISTOGRAM,
    "From the injection to the first detector",
    (),
    buckets=_DETECTION_BUCKETS,
)
CHAOS_ACTIVE = Metric("tocsin_chaos_active", _GAUGE, "Faults in place now", ("fault",))
CHAOS_RUNNING = Metric("tocsin_chaos_running", _GAUGE, "1 while an experiment runs")
FALSE_ALARMS = Metric(
    "tocsin_chaos_false_alarms_total",
    _COUNTER,
    "Alarms during an experiment that no injected fault explains",
)

# --- the observer itself ---
LOG_RECORDS = Metric(
    "tocsin_log_records_total",
    _COUNTER,
    "Failure records by what the journal did with them",
    ("operator", "decision"),
    {"decision": DECISIONS},
)
JOURNAL_DROPPED = Metric(
    "tocsin_journal_dropped_total",
    _COUNTER,
    "Lines and snapshots of failures that the disk did not take",
)
JOURNAL_BYTES = Metric("tocsin_journal_bytes", _GAUGE, "Disk that a node's journal takes up")
ARCHIVE_LAG = Metric(
    "tocsin_journal_archive_lag_seconds",
    _GAUGE,
    "Age of the oldest rotated journal file that is not in the archive yet; 0 when none waits",
)
ARCHIVE_FAILURES = Metric(
    "tocsin_journal_archive_failures_total", _COUNTER, "Journal files that could not be archived"
)
REPRO_RUNS = Metric(
    "tocsin_repro_runs_total",
    _COUNTER,
    "Reproductions written and run",
    ("result",),
    {"result": REPRO_RESULTS},
)
DELIVERIES = Metric(
    "tocsin_alert_deliveries_total",
    _COUNTER,
    "Alert messages by receiver and what became of them",
    ("receiver", "result"),
    {"receiver": RECEIVERS, "result": DELIVERY_RESULTS},
)
HUB_MERGE = Metric(
    "tocsin_hub_last_merge_timestamp_seconds",
    _GAUGE,
    "Unix time at which the hub last read its node's files",
)
HUB_MERGE_DURATION = Metric(
    "tocsin_hub_merge_duration_seconds", _GAUGE, "Time that the hub's last reading took"
)
HUB_SERIES = Metric("tocsin_hub_series", _GAUGE, "Series on the hub's page; the budget is 2,000")
BUILD_INFO = Metric(
    "tocsin_build_info",
    _GAUGE,
    "1, with the versions that serve",
    ("version", "torch", "ray", "attn_backend"),
)

CATALOGUE: tuple[Metric, ...] = tuple(
    value for value in list(globals().values()) if isinstance(value, Metric)
)
"""Every metric, in the order of its declaration."""
