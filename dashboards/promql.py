"""Pieces of PromQL that several rules share, written so that no scrape interval makes them lie."""

from collections.abc import Mapping

from tocsin.core.metrics import Metric, MetricType

MEMORY = "1d"
"""How far back the last known value of a counter is looked for: longer than a monitoring outage."""
DRILL = "chaos"
"""Target label of what is attacked on purpose: `/sd` gives it to the hubs of a drill.

It is a label of the target and not of the metric, so an alert never changes its identity when an
experiment begins or ends, and a drill can neither mute nor page for what is served in earnest.
"""


def select(metric: Metric, where: Mapping[str, str] | None = None, part: str = "") -> str:
    """A metric's series: label → value, or `~` and a regular expression.

    Raises:
        ValueError: the metric has no such label.
    """
    where = where or {}
    unknown = set(where) - set(metric.labels) - {"le"}
    if unknown:
        raise ValueError(
            f"{metric.name}: has no label {sorted(unknown)}, known are {list(metric.labels)}; "
            "correct the alert or the catalogue"
        )
    matchers = ",".join(
        f'{label}=~"{value[1:]}"' if value.startswith("~") else f'{label}="{value}"'
        for label, value in where.items()
    )
    return f"{metric.name}{part}" + (f"{{{matchers}}}" if matchers else "")


def by(*labels: str) -> str:
    """The grouping of an alert: its own labels, and whether it is a drill."""
    return f"by ({', '.join((*labels, DRILL))})"


def arrived(
    metric: Metric,
    within: str,
    labels: tuple[str, ...],
    where: Mapping[str, str] | None = None,
) -> str:
    """How much a counter has grown `within` the time until now; no series where it has not.

    `increase()` interpolates between scrapes and never sees what a counter is born with. Here the
    last value known before `within` is subtracted, up to a day old; a counter that was not known
    counts in full; and where a restart made it smaller, `increase()` says at least that it grew.

    Raises:
        ValueError: the metric is not a counter.
    """
    if metric.type is not MetricType.COUNTER:
        raise ValueError(
            f"{metric.name}: is a {metric.type}, expected a counter; only those arrive"
        )
    now = select(metric, where)
    before = f"last_over_time({now}[{MEMORY}] offset {within})"
    return (
        f"sum {by(*labels)} (\n"
        f"  ({now}\n   - {before}) > 0\n"
        f"  or ({now}\n      unless {before}) > 0\n"
        f"  or increase({now}[{within}]) > 0\n"
        ")"
    )
