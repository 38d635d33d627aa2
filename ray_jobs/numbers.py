"""What the files of several processes say together: counters added, gauges at their largest."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from tocsin.core.metrics import CATALOGUE, Metric, MetricType

_BY_NAME = {metric.name: metric for metric in CATALOGUE}


@dataclass(frozen=True, slots=True)
class Exemplar:
    """One request or failure that stands for a number: labels of at most 128 characters."""

    labels: Mapping[str, str]
    value: float
    wall_s: float


@dataclass(slots=True)
class Numbers:
    """Values and exemplars by the key that they have in metric files; plain data that travels."""

    values: dict[str, float] = field(default_factory=dict)
    exemplars: dict[str, Exemplar] = field(default_factory=dict)

    def put(self, key: str, value: float) -> None:
        """Take one number in; keys that no metric of the catalogue has are left out."""
        series = series_of(key)
        if series is None:
            return
        held = self.values.get(key)
        if held is None:
            self.values[key] = value
        elif series.metric.type is MetricType.GAUGE:
            self.values[key] = max(held, value)
        else:
            self.values[key] = held + value

    def take(self, other: "Numbers") -> None:
        """Take everything of another one in."""
        for key, value in other.values.items():
            self.put(key, value)
        self.exemplars.update(other.exemplars)


@dataclass(frozen=True, slots=True)
class Series:
    """What a key means."""

    metric: Metric
    part: str
    labels: tuple[str, ...]


@lru_cache(maxsize=16_384)
def series_of(key: str) -> Series | None:
    """The series of a key; None for what is not of the catalogue (any more)."""
    if not key.startswith("["):
        return None
    name, part, *labels = json.loads(key)
    metric = _BY_NAME.get(name)
    if metric is None or len(labels) != len(metric.labels):
        return None  # written by another version
    return Series(metric, part, tuple(labels))


def added(several: Iterable[Numbers]) -> Numbers:
    """The numbers of a whole cluster."""
    total = Numbers()
    for one in several:
        total.take(one)
    return total
