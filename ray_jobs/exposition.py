"""The page that Prometheus reads, from the numbers of a node or of the whole cluster."""

import math
from collections import defaultdict
from collections.abc import Iterator

from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar as Attached

from tocsin.core.metrics import CATALOGUE, Metric, MetricType
from tocsin.ray_jobs.metric_file import SUM, edge_text
from tocsin.ray_jobs.numbers import Exemplar, Numbers, series_of

_Rows = dict[tuple[str, ...], dict[str, tuple[float, Exemplar | None]]]
"""Values by labels and part."""


def page(numbers: Numbers, accept: str = "") -> tuple[bytes, str]:
    """The page and its content type.

    Args:
        accept: header of the request; OpenMetrics, which alone has exemplars, if it asks for it.
    """
    encode, content_type = choose_encoder(accept)
    return encode(_Page(numbers)), content_type


def sample_count(numbers: Numbers) -> int:
    """Series on the page; a histogram's count is one that no key stands for."""
    found = [series_of(key) for key in numbers.values]
    return len(found) + sum(one is not None and one.part == SUM for one in found)


class _Page(Collector):
    """Families of the catalogue, in its order; each is there even while it is empty."""

    def __init__(self, numbers: Numbers) -> None:
        self._rows: dict[str, _Rows] = defaultdict(lambda: defaultdict(dict))
        for key, value in numbers.values.items():
            series = series_of(key)
            if series is not None:
                row = self._rows[series.metric.name][series.labels]
                row[series.part] = (value, numbers.exemplars.get(key))

    def collect(self) -> Iterator[Family]:
        for metric in CATALOGUE:
            name = metric.name
            counter = metric.type is MetricType.COUNTER
            family = Family(
                name.removesuffix("_total") if counter else name, metric.help, metric.type
            )
            for values, parts in sorted(self._rows[name].items()):
                labels = dict(zip(metric.labels, values, strict=True))
                if metric.type is MetricType.HISTOGRAM:
                    _histogram(family, metric, labels, parts)
                else:
                    value, exemplar = parts[""]
                    family.add_sample(name, labels, value, exemplar=_attached(exemplar))
            yield family


def _histogram(
    family: Family,
    metric: Metric,
    labels: dict[str, str],
    parts: dict[str, tuple[float, Exemplar | None]],
) -> None:
    """Buckets are kept apart in the files and added up here, as Prometheus wants them."""
    total = 0.0
    for edge in (*metric.buckets, math.inf):
        text = edge_text(edge)
        value, exemplar = parts.get(text, (0.0, None))
        total += value
        family.add_sample(
            f"{metric.name}_bucket", {**labels, "le": text}, total, exemplar=_attached(exemplar)
        )
    family.add_sample(f"{metric.name}_count", labels, total)
    family.add_sample(f"{metric.name}_sum", labels, parts.get(SUM, (0.0, None))[0])


def _attached(exemplar: Exemplar | None) -> Attached | None:
    if exemplar is None:
        return None
    return Attached(dict(exemplar.labels), exemplar.value, exemplar.wall_s)
