"""The figures of the live page: panels evaluated from samples, with fifteen minutes remembered.

The panels are Grafana's own: `Query.shape` says in words what its PromQL says, so one declaration
serves both. What needs PromQL proper is left to Grafana.
"""

import math
import re
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tocsin.core.metrics import Metric
from tocsin.dashboards.live.state import Figure, Line
from tocsin.dashboards.panel import Panel, Query, Shape, Take
from tocsin.dashboards.panels import dashboard

SPAN_S = 900.0
RATE_S = 10.0
HISTOGRAM_S = 30.0
"""Answers end seldom; a quantile of ten seconds would mostly be of nothing."""
POINTS_MAX = 900
LINES_MAX = 24
_SUM = "sum"

TILES = (
    ("overview", "incidents"),
    ("overview", "unverified_tokens"),
    ("chaos", "in_place"),
)
CHARTS = (
    ("degradation", "token_time_checked"),
    ("overview", "tokens"),
    ("overview", "requests"),
    ("overview", "time_to_first_token"),
    ("operators", "window"),
    ("overview", "checks"),
    ("kv_memory", "usage"),
    ("operators", "headroom"),
)


@dataclass(frozen=True, slots=True)
class Sample:
    """One number of the metrics page.

    Attributes:
        part: of a histogram: `sum`, or the upper edge of a bucket, whose count is its own and not
            that of the buckets below it.
    """

    metric: Metric
    labels: tuple[str, ...]
    value: float
    part: str = ""


def panel_of(figure: str) -> Panel:
    """The declaration behind a figure's id."""
    board, _, name = figure.partition(".")
    return next(panel for panel in dashboard(board).panels if panel.id == name)


FIGURES: tuple[str, ...] = tuple(f"{board}.{panel}" for board, panel in (*TILES, *CHARTS))


@dataclass(slots=True)
class _Group:
    """One line: what was read, as long as it is needed, and what it came to."""

    raw: deque[tuple[float, dict[str, float]]] = field(default_factory=deque)
    points: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=POINTS_MAX))


class _Asked:
    """A query with its lines."""

    def __init__(self, query: Query, shape: Shape) -> None:
        self.query = query
        self.shape = shape
        self.groups: dict[tuple[str, ...], _Group] = {}
        labels = shape.metric.labels
        self._by = tuple(labels.index(label) for label in shape.by)
        self._where = tuple(
            (labels.index(label), re.compile(pattern)) for label, pattern in shape.where.items()
        )

    def group_of(self, labels: tuple[str, ...]) -> tuple[str, ...] | None:
        """The line that a series belongs to, None when the query leaves it out."""
        if all(pattern.fullmatch(labels[k]) for k, pattern in self._where):
            return tuple(labels[k] for k in self._by)
        return None

    def take(self, wall_s: float, read: Mapping[tuple[str, ...], dict[str, float]]) -> None:
        """One reading: numbers by part, for each line."""
        take = self.shape.take
        keep_s = SPAN_S if take is Take.INCREASE else HISTOGRAM_S + RATE_S
        for key, parts in read.items():
            if key not in self.groups and len(self.groups) >= LINES_MAX:
                continue
            group = self.groups.setdefault(key, _Group())
            group.raw.append((wall_s, parts))
            while group.raw[0][0] < wall_s - keep_s:
                group.raw.popleft()
            value = _value(self.shape, group.raw, wall_s)
            if value is not None and math.isfinite(value):
                group.points.append((round(wall_s, 2), float(f"{value:.5g}")))
        for key, group in list(self.groups.items()):
            while group.points and group.points[0][0] < wall_s - SPAN_S:
                group.points.popleft()
            if not group.points and key not in read:
                del self.groups[key]

    def lines(self, wall_s: float) -> list[Line]:
        """What there is to draw, in a steady order."""
        return [
            Line(
                name=_legend(self.query.legend, self.shape.by, key),
                last=group.points[-1][1] if _fresh(group, wall_s) else None,
                points=tuple(group.points),
            )
            for key, group in sorted(self.groups.items())
        ]


class Recorder:
    """Takes the metrics page about once a second and keeps what the figures need of it."""

    def __init__(self, figures: Sequence[str] = FIGURES) -> None:
        """Nothing is remembered yet."""
        self._asked: dict[str, list[_Asked]] = {
            figure: [
                _Asked(query, query.shape)
                for query in panel_of(figure).queries
                if query.shape is not None
            ]
            for figure in figures
        }
        self._by_metric: dict[str, list[_Asked]] = defaultdict(list)
        for asked in self._asked.values():
            for one in asked:
                self._by_metric[one.shape.metric.name].append(one)

    @property
    def metrics(self) -> frozenset[str]:
        """Names of the metrics that are looked at; others need not be given."""
        return frozenset(self._by_metric)

    def take(self, wall_s: float, samples: Iterable[Sample]) -> None:
        """One reading of all series."""
        read: dict[int, dict[tuple[str, ...], dict[str, float]]] = defaultdict(dict)
        for sample in samples:
            for asked in self._by_metric.get(sample.metric.name, ()):
                key = asked.group_of(sample.labels)
                if key is not None:
                    parts = read[id(asked)].setdefault(key, {})
                    parts[sample.part] = _joined(
                        asked.shape.take, parts.get(sample.part), sample.value
                    )
        for asked_of in self._asked.values():
            for asked in asked_of:
                asked.take(wall_s, read.get(id(asked), {}))

    def figures(self, wall_s: float) -> tuple[Figure, ...]:
        """All figures with all their points."""
        return tuple(
            Figure(figure, tuple(line for one in asked for line in one.lines(wall_s)))
            for figure, asked in self._asked.items()
        )


def _joined(take: Take, held: float | None, value: float) -> float:
    if held is None:
        return value
    if take in (Take.MAX, Take.AGE):
        return max(held, value)
    return min(held, value) if take is Take.MIN else held + value


def _value(shape: Shape, raw: deque[tuple[float, dict[str, float]]], wall_s: float) -> float | None:
    """What the latest reading comes to."""
    take = shape.take
    last = raw[-1][1]
    if take in (Take.SUM, Take.MAX, Take.MIN):
        return last[""]
    if take is Take.AGE:
        return max(wall_s - last[""], 0.0)
    if take is Take.INCREASE:
        return max(last[""] - raw[0][1][""], 0.0)
    since_s = wall_s - (RATE_S if take is Take.RATE else HISTOGRAM_S)
    first_s, first = next(((t, parts) for t, parts in raw if t >= since_s - 0.5), raw[0])
    if first_s == raw[-1][0]:
        return None  # one reading tells no rate
    grown = {part: max(value - first.get(part, 0.0), 0.0) for part, value in last.items()}
    if take is Take.RATE:
        return grown[""] / (raw[-1][0] - first_s)
    total = grown.pop(_SUM, 0.0)
    count = sum(grown.values())
    if not count:
        return None
    if take is Take.MEAN:
        return total / count
    return quantile(grown, shape.quantile) if take is Take.QUANTILE else count


def quantile(buckets: Mapping[str, float], share: float) -> float | None:
    """The value that a share of the observations stay within, as Prometheus reckons it.

    Args:
        buckets: observations in each bucket, by its upper edge as text.
    """
    edges = sorted((float(edge), count) for edge, count in buckets.items())
    rank = share * sum(buckets.values())
    below, seen = 0.0, 0.0
    for edge, count in edges:
        if count and seen + count >= rank:
            return below if math.isinf(edge) else below + (edge - below) * (rank - seen) / count
        below, seen = edge, seen + count
    return None


def _legend(legend: str, by: tuple[str, ...], key: tuple[str, ...]) -> str:
    for label, value in zip(by, key, strict=True):
        legend = legend.replace(f"{{{{{label}}}}}", value)
    return legend


def _fresh(group: _Group, wall_s: float) -> bool:
    return bool(group.points) and group.points[-1][0] >= wall_s - RATE_S
