"""The metric file of a chaos run, under the names that rules and panels use."""

from pathlib import Path

from tocsin.core.metrics import (
    CHAOS_ACTIVE,
    CHAOS_RUNNING,
    FALSE_ALARMS,
    FAULTS_DETECTED,
    FAULTS_HEALED,
    FAULTS_INJECTED,
)
from tocsin.ray_jobs.chaos_file import ChaosFile
from tocsin.ray_jobs.metric_file import metric_key
from tocsin.ray_jobs.node_page import NodePage


def test_a_run_is_on_the_nodes_page_while_it_lasts(tmp_path: Path) -> None:
    """Faults that did not happen stand at 0; a run that is over does not run."""
    file = ChaosFile(tmp_path)
    file.running(True)
    file.active("kv.bitflip", 1)
    file.injected("kv.bitflip")
    file.detected("kv.bitflip", 0.04)
    file.healed("kv.bitflip")
    file.false_alarms(2)
    page = NodePage(tmp_path)
    values = page.numbers().values

    def value(name: str, *labels: str) -> float:
        return values[metric_key(name, "", labels)]

    assert value(CHAOS_RUNNING.name) == 1
    assert value(FALSE_ALARMS.name) == 2
    for metric in (CHAOS_ACTIVE, FAULTS_INJECTED, FAULTS_DETECTED, FAULTS_HEALED):
        assert value(metric.name, "kv.bitflip") == 1
        assert value(metric.name, "rope.table") == 0
    file.running(False)
    assert page.numbers().values[metric_key(CHAOS_RUNNING.name, "", ())] == 0
    file.close()
