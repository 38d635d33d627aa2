"""What a node's page shows before anything has happened."""

from pathlib import Path

from tocsin.core.metrics import DELIVERIES, REPRO_RUNS
from tocsin.ray_jobs.metric_file import MetricFile, metric_key
from tocsin.ray_jobs.node_page import NodePage


def test_deliveries_and_reproductions_are_counted_from_zero(tmp_path: Path) -> None:
    """A counter that is born at 1 never grows: the first dead letter would go unseen."""
    page = NodePage(tmp_path)
    values = page.numbers().values
    assert values[metric_key(DELIVERIES.name, "", ("slack", "dead_letter"))] == 0.0
    assert values[metric_key(REPRO_RUNS.name, "", ("reproduced",))] == 0.0
    page.close()


def test_what_was_counted_is_not_counted_twice(tmp_path: Path) -> None:
    """The zero is added to what the relay's file says, it does not take its place."""
    file = MetricFile(tmp_path, "relay")
    file.inc(DELIVERIES, ("slack", "dead_letter"), 3)
    page = NodePage(tmp_path)
    values = page.numbers().values
    assert values[metric_key(DELIVERIES.name, "", ("slack", "dead_letter"))] == 3.0
    page.close()
    file.close()
