"""`/metrics`: every declared metric, in both forms that Prometheus reads."""

from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)
from prometheus_client.parser import text_string_to_metric_families

from tocsin.core.metrics import (
    CATALOGUE,
    CHECK_FAILURES,
    HUB_SERIES,
    TIME_TO_FIRST_TOKEN,
    TOKENS,
    MetricType,
)
from tocsin.ray_jobs.exposition import page, sample_count
from tocsin.ray_jobs.metric_file import SUM, metric_key
from tocsin.ray_jobs.numbers import Exemplar, Numbers, added

OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
FAILURE = ("m", "kv_read", "state", "state.kv_page_sum", "P0")


def text_of(numbers: Numbers, accept: str = "") -> str:
    return page(numbers, accept)[0].decode()


def test_every_metric_of_the_catalogue_is_on_the_page_with_its_type_and_help() -> None:
    """What is declared is exported, and nothing else, before anything was counted."""
    families = {one.name: one for one in text_string_to_metric_families(text_of(Numbers()))}
    declared = {
        metric.name.removesuffix("_total") if metric.type is MetricType.COUNTER else metric.name: (
            str(metric.type),
            metric.help,
        )
        for metric in CATALOGUE
    }
    assert {name: (one.type, one.documentation) for name, one in families.items()} == declared


def test_buckets_are_cumulative_and_a_histogram_counts_what_they_hold() -> None:
    """Files keep each bucket by itself; the objective of 2 s is an edge."""
    numbers = Numbers()
    for part, value in (("0.1", 2.0), ("2.0", 3.0), ("+Inf", 1.0), (SUM, 70.5)):
        numbers.put(metric_key(TIME_TO_FIRST_TOKEN.name, part, ("m",)), value)
    name = TIME_TO_FIRST_TOKEN.name
    found = {
        (sample.name, sample.labels.get("le")): sample.value
        for family in text_string_to_metric_families(text_of(numbers))
        for sample in family.samples
    }
    assert found[f"{name}_bucket", "0.05"] == 0
    assert found[f"{name}_bucket", "0.1"] == 2
    assert found[f"{name}_bucket", "2.0"] == 5
    assert found[f"{name}_bucket", "+Inf"] == found[f"{name}_count", None] == 6
    assert found[f"{name}_sum", None] == 70.5


def test_openmetrics_carries_the_exemplar_of_a_failure_and_text_does_not() -> None:
    """From an alert's counter one gets to the trace and to the reproduction."""
    key = metric_key(CHECK_FAILURES.name, "", FAILURE)
    labels = {"trace_id": "ab" * 16, "failure_id": "01JABCDEF0000000000000000"}
    numbers = Numbers({key: 3.0}, {key: Exemplar(labels, 1.0, 1_700_000_000.0)})
    text = text_of(numbers, OPENMETRICS)
    samples = [
        sample
        for family in openmetrics_families(text)
        if family.name == CHECK_FAILURES.name.removesuffix("_total")
        for sample in family.samples
    ]
    assert [(one.value, one.exemplar and one.exemplar.labels) for one in samples] == [(3.0, labels)]
    assert labels["failure_id"] not in text_of(numbers)


def test_the_type_of_the_page_is_what_was_asked_for() -> None:
    """Prometheus negotiates; a person with a browser gets text."""
    assert page(Numbers(), OPENMETRICS)[1].startswith("application/openmetrics-text")
    assert page(Numbers(), "text/html")[1].startswith("text/plain; version=0.0.4")


def test_counters_of_several_nodes_are_added_and_gauges_are_not() -> None:
    """The gateway's page speaks for the cluster."""
    tokens, series = metric_key(TOKENS.name, "", ("m",)), metric_key(HUB_SERIES.name, "", ())
    total = added(Numbers({tokens: 5.0, series: count}) for count in (30.0, 20.0))
    assert total.values == {tokens: 10.0, series: 30.0}


def test_keys_of_another_version_are_left_out() -> None:
    """A file of yesterday's release has labels that today's metric has not."""
    numbers = Numbers()
    for key in ('["tocsin_gone_total", "", "x"]', metric_key(TOKENS.name, "", ()), "closed"):
        numbers.put(key, 1.0)
    assert numbers.values == {}


def test_series_are_counted_as_the_page_shows_them() -> None:
    """The budget is about what Prometheus keeps."""
    numbers = Numbers({metric_key(TOKENS.name, "", ("m",)): 1.0})
    for part in (*("0.01", "+Inf"), SUM):
        numbers.put(metric_key(TIME_TO_FIRST_TOKEN.name, part, ("m",)), 1.0)
    assert sample_count(numbers) == 1 + 3 + 1
