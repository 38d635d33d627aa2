"""What serving notices about itself is counted, so that an alert can be made of it."""

from pathlib import Path

import pytest

from tocsin.core.clock import ManualClock
from tocsin.core.metrics import SERVICE_INCIDENTS
from tocsin.ray_jobs.metric_file import metric_key
from tocsin.ray_jobs.node_page import NodePage
from tocsin.ray_jobs.service_meter import incident_counter


def test_what_serving_notices_is_counted_by_detector_and_nothing_else_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow replica counts; that it is steady again, or a failed check, does not."""
    monkeypatch.setenv("TOCSIN_STATE", str(tmp_path))
    count = incident_counter()
    for kind in ("replica_slow", "replica_steady", "check_failed", "replica_slow", "clock_moved"):
        count(kind)
    page = NodePage(tmp_path, ManualClock(10**18))
    page.ticks()
    numbers = page.numbers().values
    counted = {
        detector: numbers[metric_key(SERVICE_INCIDENTS.name, "", (detector,))]
        for detector in SERVICE_INCIDENTS.values["detector"]
    }
    assert {name: count for name, count in counted.items() if count} == {
        "service.straggler": 2.0,
        "service.clock": 1.0,
    }
    assert len(counted) == 14
