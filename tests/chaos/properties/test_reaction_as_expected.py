"""What is expected happens, and nobody else suffers from it."""

from dataclasses import replace
from typing import Any

import pytest

from tests.chaos.histories import alarm, clean_case, with_expectation, with_record
from tests.chaos.properties.told import CLEAN, FIRED, SECOND, conclusion, event, first, judge
from tocsin.chaos.case import Case
from tocsin.chaos.reactions import REACTIONS, words
from tocsin.core.faulting import Evidence, Scope
from tocsin.core.history import Event, EventKind, Outcome

ID = "reaction.as_expected"
REFUSED: dict[str, Any] = {"outcome": Outcome.FAIL, "http_status": 500, "error": "planted"}


def _shown(name: str, *events: Event) -> Case:
    case = with_expectation(clean_case(), reaction=name)
    return replace(case, events=(*case.events, *events))


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("quarantine_kv", event(EventKind.PAGES_QUARANTINED, FIRED)),
        ("recompute", event(EventKind.REQUEST_RECOMPUTED, FIRED)),
        ("recompute", alarm(FIRED, "state.page_sum", action="recompute")),
        ("rerun_step", alarm(FIRED, "state.page_sum", cause="transient")),
        ("reload_weights", event(EventKind.WEIGHT_REPAIRED, FIRED)),
        ("restart_actor", event(EventKind.REPLICA_UP, FIRED, "replica-7")),
        ("thaw", event(EventKind.REPLICA_RESUMED, FIRED, "board", replica="replica-0")),
        ("resume", event(EventKind.REQUEST_RESUMED, FIRED, "gateway")),
        ("abort_request", event(EventKind.REQUEST_REFUSED, FIRED)),
        ("degrade", event(EventKind.BREAKER, FIRED, after="open")),
        ("degrade", event(EventKind.DEGRADED, FIRED, reason="why", on=True)),
        ("preempt", event(EventKind.REQUEST_PREEMPTED, FIRED)),
        ("reject", event(EventKind.REQUEST_REJECTED, FIRED)),
        ("shed_load", event(EventKind.REQUEST_REJECTED, FIRED)),
        ("drop_client", event(EventKind.CLIENT_DROPPED, FIRED)),
    ],
)
def test_every_reaction_shows_in_its_event(name: str, shown: Event) -> None:
    """With it the fault is answered, without it it is not; every known name is tried."""
    assert conclusion(ID, _shown(name, shown)) == "pass"
    assert first(ID, _shown(name)) == f"weights@0: {name} did not follow"


def test_every_known_reaction_is_tried_above() -> None:
    """One that is added needs its example."""
    marks = test_every_reaction_shows_in_its_event.pytestmark  # type: ignore[attr-defined]
    assert {name for name, _ in marks[0].args[1]} == set(REACTIONS)


@pytest.mark.parametrize(
    "shown",
    [
        event(EventKind.PAGES_QUARANTINED, FIRED, "replica-1"),
        event(EventKind.PAGES_QUARANTINED, FIRED - SECOND),
        event(EventKind.PAGES_QUARANTINED, FIRED + 60 * SECOND),
        event(EventKind.DEGRADED, FIRED, reason="why", on=False),
    ],
)
def test_elsewhere_earlier_or_much_later_is_no_reaction(shown: Event) -> None:
    """It must be this replica's, between injection and recovery."""
    assert conclusion(ID, _shown("quarantine_kv", shown)) == "fail"


def test_several_reactions_are_each_expected() -> None:
    """Separated by commas."""
    assert words("quarantine_kv, recompute") == ("quarantine_kv", "recompute")
    one = event(EventKind.PAGES_QUARANTINED, FIRED)
    case = _shown("quarantine_kv, recompute", one)
    assert first(ID, case) == "weights@0: recompute did not follow"


def test_a_reaction_that_nobody_knows_cannot_be_judged() -> None:
    """Unknown, with the names that are known."""
    verdict = judge(ID, _shown("call_a_friend"))
    assert str(verdict.conclusion) == "unknown"
    assert "quarantine_kv" in verdict.reason


def test_without_a_stated_reaction_only_the_breadth_is_judged_and_said_so() -> None:
    """The clean case states none."""
    verdict = judge(ID, clean_case())
    assert str(verdict.conclusion) == "pass"
    assert "no occurrence states its reaction" in verdict.notes[0]


@pytest.mark.parametrize(
    ("place", "fields", "expected"),
    [
        (10, {}, "pass"),
        (0, {}, "fail"),
        (10, {"attempts": ("replica-1",)}, "fail"),
        (10, {"attempts": ("replica-1", "replica-0")}, "pass"),
        (10, {"attempts": ()}, "pass"),
        (0, {"attempts": (), "http_status": 429}, "pass"),
        (38, {}, "fail"),
    ],
)
def test_only_requests_that_met_the_fault_may_be_refused(
    place: int, fields: dict[str, Any], expected: str
) -> None:
    """Request 10 begins with the fault, on its replica; 0 has ended, 38 begins after recovery."""
    case = with_expectation(clean_case(), recover_within_s=1.0)
    assert conclusion(ID, with_record(case, place, **{**REFUSED, **fields})) == expected


def test_the_refusal_of_a_malformed_request_is_its_reaction() -> None:
    """Its client sees it; no other request is touched by it."""
    planned = replace(CLEAN.occurrences[0].planned, scope=Scope.CLIENT)
    planned = replace(planned, expect=replace(planned.expect, reaction="reject"))
    evidence = Evidence("body", "not sent", "answered 400", ("r00010",))
    one = replace(CLEAN.occurrences[0], planned=planned, replica="client", evidence=evidence)
    bad = {"outcome": Outcome.FAIL, "error": "no", "malformed": "ragged"}
    for status, expected in ((400, "pass"), (500, "fail")):
        case = with_record(clean_case(occurrences=(one,)), 10, **bad, http_status=status)
        assert conclusion(ID, case) == expected
    assert conclusion(ID, with_record(case, 11, **REFUSED)) == "fail"


def test_without_a_fault_there_is_no_reaction() -> None:
    """Vacuous, like every property of faults."""
    assert conclusion(ID, clean_case(occurrences=())) == "vacuous"
