"""Too much is said to be too much, and what was taken is served in turn."""

from dataclasses import replace
from typing import Any

import pytest

from tests.chaos.histories import MS, clean_case, with_record
from tests.chaos.properties.told import CLEAN, FIRED, SECOND, T0, conclusion, first, judge
from tocsin.chaos.case import Case
from tocsin.core.faulting import Scope
from tocsin.core.history import Outcome

ID = "overload.fair"


def _shed(**fields: Any) -> Case:
    """Request 0 is turned away."""
    away = {
        "outcome": Outcome.FAIL,
        "http_status": 429,
        "retry_after": "1",
        "error": "no room",
        "chunks": [],
        "t_first_ns": 0,
        "finish_reason": "",
    }
    return with_record(clean_case(), 0, **{**away, **fields})


def _late(case: Case, place: int, wait_ns: int) -> Case:
    record = case.records[place]
    return with_record(case, place, t_first_ns=record.t_invoke_ns + wait_ns)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "pass"),
        ({"http_status": 503}, "pass"),
        ({"retry_after": ""}, "fail"),
        ({"retry_after": None}, "vacuous"),
    ],
)
def test_who_is_turned_away_is_told_when_to_come_again(
    fields: dict[str, Any], expected: str
) -> None:
    """An old record in which nobody looked proves nothing."""
    assert conclusion(ID, _shed(**fields)) == expected


@pytest.mark.parametrize(("wait_ms", "expected"), [(1000, "pass"), (1001, "fail")])
def test_nobody_admitted_waits_out_of_proportion(wait_ms: int, expected: str) -> None:
    """Twenty times the median of 10 ms is less than a second, which nobody minds."""
    assert conclusion(ID, _late(_shed(), 3, wait_ms * MS)) == expected


def test_the_median_is_that_of_the_admitted() -> None:
    """Everybody waits 100 ms: 2 s are in proportion, 2.1 s are not."""
    case = _shed()
    for place in range(1, 40):
        case = _late(case, place, 100 * MS)
    assert conclusion(ID, _late(case, 5, 2 * SECOND)) == "pass"
    assert "waited 2.10 s" in first(ID, _late(case, 5, 2100 * MS))


def test_without_too_much_load_nothing_is_judged() -> None:
    """A long wait alone is the affair of recovery and of the probes."""
    verdict = judge(ID, _late(clean_case(), 3, 60 * SECOND))
    assert str(verdict.conclusion) == "vacuous"


def test_a_fault_of_the_load_makes_it_judged() -> None:
    """Then silence of 429s is no excuse."""
    planned = replace(CLEAN.occurrences[0].planned, kind="load.thundering_herd")
    crowd = clean_case(occurrences=(replace(CLEAN.occurrences[0], planned=planned),))
    assert conclusion(ID, crowd) == "pass"
    assert conclusion(ID, _late(crowd, 3, 60 * SECOND)) == "fail"


def test_a_wait_while_a_replica_is_away_is_that_faults() -> None:
    """The queue cannot help it."""
    planned = replace(CLEAN.occurrences[0].planned, scope=Scope.PROCESS)
    away = replace(CLEAN.occurrences[0], planned=planned)
    place = (FIRED - T0) // (100 * MS)
    for one, expected in (((away,), "pass"), (CLEAN.occurrences, "fail")):
        case = replace(_late(_shed(), place, 5 * SECOND), occurrences=one)
        assert conclusion(ID, case) == expected
