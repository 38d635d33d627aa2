"""Queries by name: each function makes the PromQL and the words for a backend without Prometheus.

A metric comes in as its declaration, so a renamed or removed one fails at import, not in a browser.
Labels that a person chooses on a dashboard (`model`, `operator`, `replica`) are always matched.
"""

from collections.abc import Mapping

from tocsin.core.metrics import Metric, MetricType
from tocsin.dashboards.panel import Query, Shape, Take

CHOSEN = ("model", "operator", "replica")
RATE_INTERVAL = "$__rate_interval"
RANGE = "$__range"
WITH_EXEMPLARS = frozenset(
    {
        "tocsin_check_failures_total",
        "tocsin_request_duration_seconds",
        "tocsin_time_to_first_token_seconds",
        "tocsin_time_per_output_token_seconds",
    }
)

Labels = tuple[str, ...]
Where = Mapping[str, str]


def rate(metric: Metric, by: Labels = (), where: Where | None = None, legend: str = "") -> Query:
    """How fast a counter grows, per second."""
    expr = f"{_sum(by)} (rate({select(metric, where)}[{RATE_INTERVAL}]))"
    return _query(expr, legend, Shape(metric, Take.RATE, by, where or {}))


def increase(
    metric: Metric, by: Labels = (), where: Where | None = None, legend: str = ""
) -> Query:
    """How much a counter has grown in the range shown; one number for each series."""
    expr = f"{_sum(by)} (increase({select(metric, where)}[{RANGE}]))"
    return _query(expr, legend, Shape(metric, Take.INCREASE, by, where or {}), instant=True)


def total(metric: Metric, by: Labels = (), where: Where | None = None, legend: str = "") -> Query:
    """A gauge, or a counter since the start, added up."""
    expr = f"{_sum(by)} ({select(metric, where)})"
    return _query(expr, legend, Shape(metric, Take.SUM, by, where or {}))


def largest(metric: Metric, by: Labels = (), where: Where | None = None, legend: str = "") -> Query:
    """The largest of a gauge's series."""
    expr = f"max{_by(by)} ({select(metric, where)})"
    return _query(expr, legend, Shape(metric, Take.MAX, by, where or {}))


def smallest(
    metric: Metric, by: Labels = (), where: Where | None = None, legend: str = ""
) -> Query:
    """The smallest of a gauge's series."""
    expr = f"min{_by(by)} ({select(metric, where)})"
    return _query(expr, legend, Shape(metric, Take.MIN, by, where or {}))


def age(metric: Metric, by: Labels = (), where: Where | None = None, legend: str = "") -> Query:
    """Seconds since the latest of a gauge's Unix times."""
    expr = f"time() - max{_by(by)} ({select(metric, where)})"
    return _query(expr, legend, Shape(metric, Take.AGE, by, where or {}))


def quantile(
    metric: Metric,
    share: float,
    by: Labels = (),
    where: Where | None = None,
    legend: str = "",
) -> Query:
    """The value of a histogram that `share` of the observations stay within."""
    grouped = f"{_sum(('le', *by))} (rate({select(metric, where, 'bucket')}[{RATE_INTERVAL}]))"
    shape = Shape(metric, Take.QUANTILE, by, where or {}, share)
    return _query(f"histogram_quantile({share:g}, {grouped})", legend, shape)


def quantiles(metric: Metric, *shares: float, where: Where | None = None) -> tuple[Query, ...]:
    """One query for each share, named p50, p99, …"""
    return tuple(
        quantile(metric, share, where=where, legend=f"p{100 * share:g}") for share in shares
    )


def mean(metric: Metric, by: Labels = (), where: Where | None = None, legend: str = "") -> Query:
    """Mean of a histogram's observations."""
    expr = " / ".join(
        f"{_sum(by)} (rate({select(metric, where, part)}[{RATE_INTERVAL}]))"
        for part in ("sum", "count")
    )
    return _query(expr, legend, Shape(metric, Take.MEAN, by, where or {}))


def buckets(metric: Metric, where: Where | None = None) -> Query:
    """How many observations fell into each bucket; for heat maps."""
    expr = f"sum by (le) (increase({select(metric, where, 'bucket')}[{RATE_INTERVAL}]))"
    return _query(expr, "{{le}}", Shape(metric, Take.BUCKETS, (), where or {}))


def select(metric: Metric, where: Where | None = None, part: str = "") -> str:
    """The selector of a metric's series, held to what the person has chosen."""
    unknown = set(where or {}) - set(metric.labels)
    if unknown:
        raise ValueError(
            f"{metric.name}: query selects by {sorted(unknown)}, the metric has "
            f"{list(metric.labels)}; correct the panel or the catalogue"
        )
    if bool(part) != (metric.type is MetricType.HISTOGRAM):
        raise ValueError(
            f"{metric.name}: a {metric.type} is asked for as {part or 'a plain number'}; use "
            "quantile, mean or buckets for histograms and the others for the rest"
        )
    matchers = [f'{label}=~"${label}"' for label in metric.labels if label in CHOSEN]
    matchers += [f'{label}=~"{pattern}"' for label, pattern in (where or {}).items()]
    name = f"{metric.name}_{part}" if part else metric.name
    return f"{name}{{{', '.join(matchers)}}}" if matchers else name


def ratio(part: Query, whole: Query, legend: str) -> Query:
    """One query's answer as a share of another's; no answer where the whole is nothing."""
    return Query(f"({part.expr}) / ({whole.expr})", legend, part.instant)


def time_spent(histogram: Metric, by: Labels = ()) -> Query:
    """Sum of a histogram's observations per second."""
    return raw(f"{_sum(by)} (rate({select(histogram, None, 'sum')}[{RATE_INTERVAL}]))", "")


def raw(expr: str, legend: str, *, instant: bool = False) -> Query:
    """PromQL as it stands, where no function here says it."""
    return Query(expr, legend, instant)


def _query(expr: str, legend: str, shape: Shape, *, instant: bool = False) -> Query:
    missing = set(shape.by) - set(shape.metric.labels)
    if missing:
        raise ValueError(
            f"{shape.metric.name}: query groups by {sorted(missing)}, the metric has "
            f"{list(shape.metric.labels)}; correct the panel or the catalogue"
        )
    text = legend or " ".join(f"{{{{{label}}}}}" for label in shape.by) or shape.metric.name
    exemplars = shape.metric.name in WITH_EXEMPLARS and not instant
    return Query(expr, text, instant, exemplars, shape)


def _by(labels: Labels) -> str:
    return f" by ({', '.join(labels)})" if labels else ""


def _sum(labels: Labels) -> str:
    return f"sum{_by(labels)}"
