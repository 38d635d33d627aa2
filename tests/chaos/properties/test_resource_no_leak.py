"""What was taken is given back."""

from dataclasses import replace
from typing import Any

import pytest

from tests.chaos.properties.told import (
    T0,
    conclusion,
    event,
    first,
    judge,
    with_events,
    with_params,
)
from tocsin.chaos.case import Case
from tocsin.core.history import EventKind

ID = "resource.no_leak"
MIB = 2**20
HELD: dict[str, Any] = {
    "pid": 7,
    "rss_bytes": 1000 * MIB,
    "shm_bytes": 0,
    "fds": 40,
    "threads": 20,
}


def _case(more: dict[str, int], *, offered: bool = True, **changes: Any) -> Case:
    after = {**HELD, **{key: HELD[key] + value for key, value in more.items()}}
    return with_events(
        event(EventKind.RESOURCES, T0, when="before", **HELD),
        event(EventKind.RESOURCES, T0 + 1, when="after", **after),
        observes=("resources",) if offered else (),
        **changes,
    )


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, "pass"),
        ({"rss_bytes": -500 * MIB, "fds": -20}, "pass"),
        ({"rss_bytes": 512 * MIB}, "pass"),
        ({"rss_bytes": 513 * MIB}, "fail"),
        ({"shm_bytes": 129 * MIB}, "fail"),
        ({"fds": 64}, "pass"),
        ({"fds": 65}, "fail"),
        ({"threads": 65}, "fail"),
    ],
)
def test_each_thing_has_its_allowance(more: dict[str, int], expected: str) -> None:
    """Less is never wrong."""
    assert conclusion(ID, _case(more)) == expected


def test_a_large_process_may_grow_by_a_share() -> None:
    """A quarter of ten gigabytes."""
    large = {**HELD, "rss_bytes": 10_000 * MIB}
    for grown, expected in ((2500, "pass"), (2501, "fail")):
        after = {**large, "rss_bytes": (10_000 + grown) * MIB}
        case = with_events(
            event(EventKind.RESOURCES, T0, when="before", **large),
            event(EventKind.RESOURCES, T0, when="after", **after),
        )
        assert conclusion(ID, case) == expected


def test_allowances_are_limits_of_the_experiment_and_the_words_are_for_people() -> None:
    """In the unit of the limit."""
    case = with_params(_case({"fds": 9, "rss_bytes": 300 * MIB}), ID, fds=8, rss_mib=100)
    assert first(ID, case) == ("replica-0: holds 300 MiB more than before (1000), allowed are 250")
    assert "9 open files more" in judge(ID, case).violations[1].message


def test_another_process_under_the_same_name_is_not_compared() -> None:
    """It began anew: where every replica was replaced there is nothing to compare."""
    case = _case({"pid": 1, "fds": 1000})
    assert conclusion(ID, case) == "vacuous"
    assert "replaced" in judge(ID, case).reason


def test_a_reading_that_is_missing_at_the_end_is_unknown_and_none_at_all_is_vacuous() -> None:
    """Replicas on other machines cannot be read from here."""
    half = with_events(event(EventKind.RESOURCES, T0, when="before", **HELD))
    assert conclusion(ID, half) == "unknown"
    assert conclusion(ID, replace(half, aborted="SIGINT was received")) == "vacuous"
    assert conclusion(ID, with_events()) == "vacuous"
    assert conclusion(ID, with_events(observes=("resources",))) == "unknown"
