"""What a panel is: plain data that Grafana, the live page and the documents are made from.

A dashboard is a page of rows, a row holds panels, a panel asks queries; who draws is not known.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tocsin.core.metrics import CATALOGUE, Metric


class Kind(StrEnum):
    """How a panel is drawn."""

    TIMESERIES = "timeseries"
    STAT = "stat"
    TABLE = "table"
    STATE = "state"  # a band for each series, coloured by its value
    BAR = "bar"  # one bar for each series, of its present value
    HEATMAP = "heatmap"


class Unit(StrEnum):
    """Units by the names that Grafana knows."""

    NUMBER = "short"
    STATE = "none"
    RATIO = "percentunit"  # 1.0 is 100 %
    SECONDS = "s"
    BYTES = "bytes"
    PER_SECOND = "cps"
    REQUESTS_PER_SECOND = "reqps"


class Level(StrEnum):
    """What a value means to the person who looks; each backend has its own colour for it."""

    OK = "ok"
    NOTE = "note"
    WARN = "warn"
    BAD = "bad"
    IDLE = "idle"


class Take(StrEnum):
    """What a query makes of the series it selects; the live page computes exactly these."""

    RATE = "rate"  # per second over the rate interval, summed
    INCREASE = "increase"  # over the whole range shown, summed
    SUM = "sum"
    MAX = "max"
    MIN = "min"
    QUANTILE = "quantile"  # of a histogram, over the rate interval
    MEAN = "mean"  # of a histogram, over the rate interval
    BUCKETS = "buckets"  # of a histogram: observations in the rate interval, by edge
    AGE = "age"  # seconds since a Unix time


@dataclass(frozen=True, slots=True)
class Shape:
    """A query in words instead of PromQL: what a backend without Prometheus computes.

    Attributes:
        by: labels that tell the results apart; all others are taken together.
        where: label → regular expression that its whole value must match.
        quantile: 0 to 1, for `Take.QUANTILE`.
    """

    metric: Metric
    take: Take
    by: tuple[str, ...] = ()
    where: Mapping[str, str] = field(default_factory=dict)
    quantile: float = 0.0


@dataclass(frozen=True, slots=True)
class Query:
    """One question to Prometheus.

    Attributes:
        expr: PromQL; may hold `$model`, `$operator`, `$replica`, `$__rate_interval`, `$__range`.
        legend: name of each series; `{{label}}` stands for the label's value.
        instant: asked for now only, not for the range shown.
        exemplars: whether the traces and failures behind the numbers are asked for too.
        shape: the same in words, where it is simple enough; None where it needs PromQL.
    """

    expr: str
    legend: str
    instant: bool = False
    exemplars: bool = False
    shape: Shape | None = None


@dataclass(frozen=True, slots=True)
class Threshold:
    """From `at` upwards a value means `level`."""

    at: float
    level: Level


@dataclass(frozen=True, slots=True)
class ValueText:
    """A value that stands for a word."""

    value: float
    text: str
    text_zh: str
    level: Level


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture, and what a person needs to act on it.

    Attributes:
        id: unique in its dashboard; snake_case.
        no_value: what an empty panel says, so that nobody has to guess whether it is broken.
        runbook: name of a page in docs/runbooks, without ending.
        thresholds: ascending; below the first one a value is OK.
        base: what a value below the first threshold means.
        width, height: in Grafana's grid, 24 columns wide.
    """

    id: str
    title: str
    title_zh: str
    description: str
    unit: Unit
    queries: tuple[Query, ...]
    kind: Kind
    no_value: str
    runbook: str
    thresholds: tuple[Threshold, ...] = ()
    base: Level = Level.OK
    values: tuple[ValueText, ...] = ()
    stacked: bool = False
    minimum: float | None = 0.0
    maximum: float | None = None
    width: int = 8
    height: int = 7


@dataclass(frozen=True, slots=True)
class Variable:
    """A choice at the top of a dashboard: one, several or all values of a label."""

    name: str
    label: str
    label_zh: str
    source: Metric


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under one heading; with `repeat` the row appears once for each chosen value."""

    title: str
    title_zh: str
    panels: tuple[Panel, ...]
    repeat: str = ""


@dataclass(frozen=True, slots=True)
class Dashboard:
    """One page; `uid` never changes, because links and bookmarks hold it."""

    id: str
    title: str
    title_zh: str
    description: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]

    @property
    def uid(self) -> str:
        """The name that Grafana keeps it under."""
        return f"tocsin-{self.id.replace('_', '-')}"

    @property
    def panels(self) -> tuple[Panel, ...]:
        """All panels, in reading order."""
        return tuple(panel for row in self.rows for panel in row.panels)


DEFAULTS: Mapping[str, str] = {
    "model": ".*",
    "operator": ".*",
    "replica": ".*",
    "__rate_interval": "1m",
    "__range": "15m",
    "__interval": "15s",
}
_VARIABLE = re.compile(r"\$(?:\{([a-z_]\w*)(?::\w+)?\}|([a-z_]\w*))")
_NAME = re.compile(r"\btocsin_[a-z0-9_]+")
_BY_SERIES = {series: metric.name for metric in CATALOGUE for series in metric.series}


def variables_of(expr: str) -> tuple[str, ...]:
    """Names of the variables that an expression holds, without `$`, sorted."""
    return tuple(sorted({braced or plain for braced, plain in _VARIABLE.findall(expr)}))


def substitute(expr: str, values: Mapping[str, str] | None = None) -> str:
    """The expression with a value in place of each variable; unnamed ones take `DEFAULTS`."""
    chosen = {**DEFAULTS, **(values or {})}
    return _VARIABLE.sub(lambda found: chosen[found[1] or found[2]], expr)


def metrics_in(exprs: Iterable[str]) -> frozenset[str]:
    """Names of the catalogue's metrics that the expressions ask for.

    A name that the catalogue does not have is returned as it stands, so that a comparison shows it.
    """
    names = (name for expr in exprs for name in _NAME.findall(expr))
    return frozenset(_BY_SERIES.get(name, name) for name in names)
