"""What faults expect and what checks claim to catch are one statement, made on both sides."""

import pytest

from tocsin.chaos.contract import faults
from tocsin.checker.contract import registry

SERVICE = {
    "service.actor_down",
    "service.heartbeat",
    "service.backend_error",
    "service.admission",
    "service.check_error",
    "service.start",
    "service.control_plane",
    "service.latency",
    "service.reachable",
    "service.connection",
    "service.page_audit",
    "service.preemption_rate",
    "service.straggler",
    "service.clock",
    "service.abort",
    "service.slow_client",
    "service.idempotency",
    "service.metrics",
    "service.traces",
    "service.alerts",
    "service.logs",
    "service.template",
}


@pytest.mark.parametrize("kind", list(faults()))
def test_every_detector_that_a_fault_expects_exists(kind: str) -> None:
    """A misspelt detector could never be seen."""
    assert set(faults()[kind].expect) <= set(registry()) | SERVICE


@pytest.mark.parametrize("kind", list(faults()))
def test_a_check_that_a_fault_expects_names_the_fault(kind: str) -> None:
    """expect → catches."""
    silent = [
        detector
        for detector in faults()[kind].expect
        if detector in registry() and kind not in registry()[detector].catches
    ]
    assert silent == []


@pytest.mark.parametrize("kind", list(faults()))
def test_a_check_that_names_a_fault_is_expected_by_it(kind: str) -> None:
    """catches → expect."""
    forgotten = [
        check.id
        for check in registry().values()
        if kind in check.catches and check.id not in faults()[kind].expect
    ]
    assert forgotten == []


def test_checks_name_only_faults_that_exist() -> None:
    """A misspelt fault would be caught by nobody."""
    named = {kind for check in registry().values() for kind in check.catches}
    assert named - set(faults()) == set()
