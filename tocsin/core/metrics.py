"""The metric catalogue: name, type, labels and help of every series that Tocsin exports."""

from dataclasses import dataclass
from enum import StrEnum


class MetricType(StrEnum):
    """Prometheus metric types in use."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One declared metric; counters end in `_total`, units are base units."""

    name: str
    type: MetricType
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)

CHECKS = Metric(
    "tocsin_checks_total",
    MetricType.COUNTER,
    "Check evaluations",
    ("operator", "layer", "result"),
)
CHECK_FAILURES = Metric(
    "tocsin_check_failures_total",
    MetricType.COUNTER,
    "Recorded failures, one a finding",
    ("operator", "layer", "check", "priority"),
)
CAUSES = Metric(
    "tocsin_failure_causes_total",
    MetricType.COUNTER,
    "What the recovery ladder found out about an alarm",
    ("cause",),
)
BREAKER_STATE = Metric(
    "tocsin_breaker_state",
    MetricType.GAUGE,
    "1 for the state that a replica's breaker is in",
    ("replica", "backend", "state"),
)
TOKENS = Metric("tocsin_tokens_generated_total", MetricType.COUNTER, "Tokens released")
UNVERIFIED_TOKENS = Metric(
    "tocsin_unverified_tokens_total",
    MetricType.COUNTER,
    "Tokens released with no verdict behind them; anything but 0 means that checks are off",
)
PAGES_QUARANTINED = Metric(
    "tocsin_kv_pages_quarantined_total", MetricType.COUNTER, "KV pages taken out and zeroed"
)
WEIGHTS_REPAIRED = Metric(
    "tocsin_weight_tiles_repaired_total", MetricType.COUNTER, "Weight tiles copied anew"
)
REPLICA_UP = Metric(
    "tocsin_replica_up", MetricType.GAUGE, "1 while a replica's heartbeat is fresh", ("replica",)
)
KV_USAGE = Metric(
    "tocsin_kv_cache_usage_ratio", MetricType.GAUGE, "Share of KV pages in use", ("replica",)
)
REQUESTS = Metric(
    "tocsin_requests_total", MetricType.COUNTER, "Requests by how they ended", ("outcome",)
)
REQUEST_DURATION = Metric(
    "tocsin_request_duration_seconds",
    MetricType.HISTOGRAM,
    "From arrival to the end of the answer",
    buckets=_SECONDS,
)
TIME_TO_FIRST_TOKEN = Metric(
    "tocsin_time_to_first_token_seconds",
    MetricType.HISTOGRAM,
    "From arrival to the first token",
    buckets=_SECONDS,
)

CATALOGUE: tuple[Metric, ...] = (
    CHECKS,
    CHECK_FAILURES,
    CAUSES,
    BREAKER_STATE,
    TOKENS,
    UNVERIFIED_TOKENS,
    PAGES_QUARANTINED,
    WEIGHTS_REPAIRED,
    REPLICA_UP,
    KV_USAGE,
    REQUESTS,
    REQUEST_DURATION,
    TIME_TO_FIRST_TOKEN,
)
