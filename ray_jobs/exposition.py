"""`/metrics`: the gateway's own series and those that the replicas' heartbeats carry."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client import Counter as PrometheusCounter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tocsin.core import metrics
from tocsin.core.terms import BreakerState

OUTCOMES = ("ok", "failed", "refused", "rejected", "aborted")
Replicas = Mapping[str, Mapping[str, Any]]


class GatewayMetrics:
    """What the gateway counts itself, in a registry of its own."""

    def __init__(self, replicas: Callable[[], Replicas]) -> None:
        """Make every label set at 0; `replicas` gives the last heartbeats at scrape time."""
        self.registry = CollectorRegistry()
        requests = metrics.REQUESTS
        self.requests = PrometheusCounter(
            requests.name, requests.help, requests.labels, registry=self.registry
        )
        for outcome in OUTCOMES:
            self.requests.labels(outcome)
        self.duration = self._histogram(metrics.REQUEST_DURATION)
        self.first_token = self._histogram(metrics.TIME_TO_FIRST_TOKEN)
        self.registry.register(ReplicaCollector(replicas))

    def text(self) -> bytes:
        """The page."""
        return generate_latest(self.registry)

    def _histogram(self, metric: metrics.Metric) -> Histogram:
        return Histogram(metric.name, metric.help, buckets=metric.buckets, registry=self.registry)


class ReplicaCollector(Collector):
    """Sums over all replicas ever heard of, the dead ones' last words included.

    What a replica counted after its last heartbeat before a kill (at most 0.2 s) is lost.
    """

    def __init__(self, replicas: Callable[[], Replicas]) -> None:
        """Read the heartbeats anew at each scrape."""
        self._replicas = replicas

    def collect(self) -> Iterable[Metric]:
        """Every series of the catalogue that heartbeats carry."""
        replicas = dict(self._replicas())
        counters = [heard.get("counters", {}) for heard in replicas.values()]
        yield _summed(metrics.CHECKS, counters, "checks")
        yield _summed(metrics.CHECK_FAILURES, counters, "failures")
        yield _summed(metrics.CAUSES, counters, "causes")
        yield _total(metrics.UNVERIFIED_TOKENS, counters, "unverified_tokens")
        yield _total(metrics.PAGES_QUARANTINED, counters, "pages_quarantined")
        yield _total(metrics.WEIGHTS_REPAIRED, counters, "weights_repaired")
        tokens = sum(
            heard.get("stats", {}).get("tokens_released", 0) for heard in replicas.values()
        )
        yield CounterMetricFamily(metrics.TOKENS.name, metrics.TOKENS.help, value=tokens)
        up, usage, breaker = (
            GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
            for metric in (metrics.REPLICA_UP, metrics.KV_USAGE, metrics.BREAKER_STATE)
        )
        for replica, heard in replicas.items():
            serving = heard["alive"] and not heard["stalled"]
            up.add_metric([replica], float(serving))
            if not heard["alive"]:
                continue
            pages = heard["stats"]
            usage.add_metric([replica], pages["pages_used"] / max(pages["pages_total"], 1))
            for backend, now in heard.get("breaker", {}).items():
                for state in BreakerState:
                    breaker.add_metric([replica, backend, state], float(state == now))
        yield from (up, usage, breaker)


def _summed(metric: metrics.Metric, counters: list[Any], name: str) -> CounterMetricFamily:
    """A counter with labels; the heartbeat joins the label values with a slash."""
    total: Counter[str] = Counter()
    for counter in counters:
        total.update(counter.get(name, {}))
    family = CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
    for key, value in sorted(total.items()):
        family.add_metric(key.split("/"), value)
    return family


def _total(metric: metrics.Metric, counters: list[Any], name: str) -> CounterMetricFamily:
    value = sum(counter.get(name, 0) for counter in counters)
    return CounterMetricFamily(metric.name, metric.help, value=value)
