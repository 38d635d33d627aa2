"""`/metrics`: every declared series, sums over the living and the dead, in Prometheus' own form."""

from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tocsin.core.metrics import CATALOGUE, MetricType
from tocsin.ray_jobs.exposition import OUTCOMES, GatewayMetrics


def heartbeat(*, alive: bool = True, tokens: int = 0, **counters: Any) -> dict[str, Any]:
    return {
        "alive": alive,
        "stalled": False,
        "stats": {"tokens_released": tokens, "pages_used": 3, "pages_total": 12},
        "breaker": {"flash": "open", "sdpa": "closed"},
        "counters": {"checks": {}, "failures": {}, "causes": {}, **counters},
    }


def samples(replicas: dict[str, dict[str, Any]]) -> dict[tuple[str, frozenset[Any]], float]:
    text = GatewayMetrics(lambda: replicas).text().decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(replicas: dict[str, dict[str, Any]], name: str, **labels: str) -> float:
    return samples(replicas)[name, frozenset(labels.items())]


def test_every_metric_of_the_catalogue_is_on_the_page_with_its_type() -> None:
    """What is declared is exported, and nothing else."""
    text = GatewayMetrics(lambda: {"a": heartbeat()}).text().decode()
    families = {family.name: family.type for family in text_string_to_metric_families(text)}
    declared = {
        metric.name.removesuffix("_total") if metric.type is MetricType.COUNTER else metric.name: (
            str(metric.type)
        )
        for metric in CATALOGUE
    }
    created = {name for name in families if name.endswith("_created")}
    assert {name: kind for name, kind in families.items() if name not in created} == declared


def test_a_counter_is_the_sum_of_the_living_and_the_dead() -> None:
    """A replica that was killed takes nothing with it: a counter never goes down."""
    key = "attention/numerical/ok"
    replicas = {
        "dead": heartbeat(alive=False, tokens=5, checks={key: 7}, unverified_tokens=1),
        "new": heartbeat(tokens=2, checks={key: 4}, unverified_tokens=0),
    }
    labels = {"operator": "attention", "layer": "numerical", "result": "ok"}
    assert value(replicas, "tocsin_checks_total", **labels) == 11
    assert value(replicas, "tocsin_tokens_generated_total") == 7
    assert value(replicas, "tocsin_unverified_tokens_total") == 1


def test_a_failure_has_its_four_labels() -> None:
    """They are what an alert groups by."""
    replicas = {
        "a": heartbeat(failures={"kv_read/state/state.kv_page_sum/P0": 2}),
    }
    labels = {"operator": "kv_read", "layer": "state", "check": "state.kv_page_sum"}
    assert value(replicas, "tocsin_check_failures_total", priority="P0", **labels) == 2


def test_a_breaker_is_in_exactly_one_state() -> None:
    """One series a state, so that a rule can name the state it waits for."""
    replicas = {"a": heartbeat()}

    def state(name: str) -> float:
        return value(replicas, "tocsin_breaker_state", replica="a", backend="flash", state=name)

    assert (state("open"), state("closed"), state("half_open")) == (1, 0, 0)


def test_a_dead_or_stalled_replica_is_not_up_and_its_gauges_are_gone() -> None:
    """A gauge of the dead would stand still for ever."""
    stalled = {**heartbeat(), "stalled": True}
    replicas = {"dead": heartbeat(alive=False), "stalled": stalled, "well": heartbeat()}
    up = {name: value(replicas, "tocsin_replica_up", replica=name) for name in replicas}
    assert up == {"dead": 0, "stalled": 0, "well": 1}
    usage = {key for key in samples(replicas) if key[0] == "tocsin_kv_cache_usage_ratio"}
    assert len(usage) == 2
    assert value(replicas, "tocsin_kv_cache_usage_ratio", replica="well") == 0.25


def test_every_outcome_stands_at_zero_from_the_start() -> None:
    """A rate needs a first value."""
    assert [value({}, "tocsin_requests_total", outcome=one) for one in OUTCOMES] == [0.0] * 5
