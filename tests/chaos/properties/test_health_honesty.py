"""A page says ok only while somebody can be answered."""

import pytest

from tests.chaos.histories import clean_record
from tests.chaos.properties.told import (
    CLEAN,
    SECOND,
    T0,
    conclusion,
    event,
    first,
    judge,
    with_events,
    with_params,
)
from tocsin.chaos.case import Case
from tocsin.core.history import EventKind, Outcome

ID = "health.honesty"


def _stuck(at_s: float, **reading: bool | None) -> Case:
    """The load ends after 4 s; one request waits from then on for 60 s more."""
    last = clean_record(99, T0 + 4 * SECOND)
    last.chunks, last.outcome, last.t_first_ns = [], Outcome.INFO, 0
    last.t_end_ns = T0 + 64 * SECOND
    told = event(EventKind.HEALTH, T0 + int(at_s * SECOND), "client", **reading)
    records = (*CLEAN.records, last)
    return with_events(told, observes=("health",), records=records, t_end_ns=T0 + 64 * SECOND)


@pytest.mark.parametrize(
    ("at_s", "reading", "expected"),
    [
        (2.0, {"health_ok": True}, "pass"),
        (13.9, {"health_ok": True}, "pass"),
        (14.1, {"health_ok": True}, "fail"),
        (14.1, {"health_ok": False}, "pass"),
        (14.1, {"health_ok": False, "checker_ok": True}, "fail"),
        (14.1, {"health_ok": None, "checker_ok": None}, "vacuous"),
        (90.0, {"health_ok": True}, "vacuous"),
    ],
)
def test_ok_needs_a_token_within_the_slack(
    at_s: float, reading: dict[str, bool | None], expected: str
) -> None:
    """The last token came at 4 s (3.98), the slack is 10; after 64 s nobody wants anything."""
    assert conclusion(ID, _stuck(at_s, **reading)) == expected


def test_both_pages_are_named_and_the_time() -> None:
    """Whoever reads it can look there."""
    words = first(ID, _stuck(30.0, health_ok=True, checker_ok=True))
    assert words.startswith("/health and /health/checker_status said ok at 30.0 s")


def test_the_slack_is_a_limit_of_the_experiment() -> None:
    """A page that claims to be fresher can be held to it."""
    case = _stuck(6.0, health_ok=True)
    assert conclusion(ID, case) == "pass"
    assert conclusion(ID, with_params(case, ID, slack_s=1.0)) == "fail"


def test_no_answer_is_noted_and_no_reading_at_all_is_unknown() -> None:
    """A service with health pages that were never read proves nothing."""
    silent = _stuck(2.0, health_ok=None, checker_ok=True)
    assert judge(ID, silent).notes == ("1 of 1 readings had no answer",)
    assert conclusion(ID, with_events(observes=("health",))) == "unknown"
    assert conclusion(ID, with_events()) == "vacuous"
