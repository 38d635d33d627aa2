"""A check that raised: an alarm of the fault that lets checks raise, and of nothing else."""

import pytest

from tests.chaos.histories import MS, alarm, clean_case, with_expectation
from tocsin.chaos.attribution import CHECK_ERROR, attribute, detectors_of
from tocsin.chaos.case import Case
from tocsin.core.history import Event


def _broken(case: Case, after_ms: int) -> Event:
    """A check raises so long after the fault of the case has fired."""
    t_ns = case.occurrences[0].fired_ns + after_ms * MS
    return alarm(t_ns, check="semantic.token_ledger", cause="check_error", error="E")


def _found(after_ms: int, *detectors: str) -> list[str]:
    """Occurrences that a broken check is laid to the charge of."""
    case = with_expectation(
        clean_case(events=(_broken(clean_case(), after_ms),)), detectors=detectors
    )
    found = attribute(case)
    assert found.false_alarms == ()
    return [one.occurrence for one in found.detections if one.detector == CHECK_ERROR]


def test_a_broken_check_speaks_for_itself_and_not_for_what_it_checks() -> None:
    """Its own id would say that it had found something."""
    assert detectors_of(_broken(clean_case(), 0)) == (CHECK_ERROR,)


def test_it_belongs_to_the_fault_that_expects_it() -> None:
    """Within the time in which that fault may be seen."""
    (occurrence,) = _found(20, CHECK_ERROR)
    assert occurrence == clean_case().occurrences[0].planned.id


@pytest.mark.parametrize(
    ("after_ms", "detector"), [(20, "state.weight_sum"), (3_600_000, CHECK_ERROR)]
)
def test_of_any_other_fault_or_time_it_is_no_alarm(after_ms: int, detector: str) -> None:
    """A mistake in the checker: noted elsewhere, no detection and no false alarm."""
    assert _found(after_ms, detector) == []
