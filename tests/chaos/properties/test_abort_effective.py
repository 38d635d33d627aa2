"""Who gives up costs nothing more."""

from dataclasses import replace
from typing import Any

import pytest

from tests.chaos.histories import MS, with_record
from tests.chaos.properties.told import (
    CLEAN,
    T0,
    conclusion,
    event,
    first,
    judge,
    with_events,
    with_params,
)
from tocsin.chaos.case import Case
from tocsin.core.faulting import Scope
from tocsin.core.history import EventKind, Outcome

ID = "abort.effective"
CANCELLED = T0 + 40 * MS


def _given_up(*, freed_ms: float | None = 1.0, steps: int = 1, observes: bool = True) -> Case:
    """Request 0 is cancelled after three tokens."""
    events = []
    if freed_ms is not None:
        told = event(EventKind.PAGES_FREED, CANCELLED + int(freed_ms * MS), pages=1, steps=steps)
        events = [replace(told, request_id="r00000")]
    case = with_events(*events, observes=("frees",) if observes else ())
    return with_record(
        case,
        0,
        outcome=Outcome.CANCELLED,
        chunks=CLEAN.records[0].chunks[:3],
        terminals=0,
        finish_reason="",
        t_end_ns=CANCELLED,
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "pass"),
        ({"steps": 4}, "pass"),
        ({"steps": 5}, "fail"),
        ({"freed_ms": 10_000.0}, "pass"),
        ({"freed_ms": 10_001.0}, "fail"),
    ],
)
def test_pages_are_free_within_steps_and_seconds(changes: dict[str, Any], expected: str) -> None:
    """Four steps of the engine, ten seconds of the client."""
    assert conclusion(ID, _given_up(**changes)) == expected


def test_both_are_limits_of_the_experiment() -> None:
    """Stricter where the engine is."""
    assert conclusion(ID, with_params(_given_up(steps=2), ID, steps=1)) == "fail"
    assert conclusion(ID, with_params(_given_up(freed_ms=900.0), ID, seconds=0.5)) == "fail"


def test_a_token_after_the_cancel_fails_whatever_the_system_tells() -> None:
    """Its client saw it."""
    case = with_record(_given_up(observes=False, freed_ms=None), 0, t_end_ns=T0 + 15 * MS)
    assert first(ID, case) == "r00000: 2 tokens arrived after its cancel"


def test_one_that_ended_by_itself_must_be_seen_at_rest() -> None:
    """No event, but the replica holds no page; without that nobody knows."""
    case = _given_up(freed_ms=None)
    assert conclusion(ID, case) == "pass"
    busy = [replace(e, data={**e.data, "pages_used": 1}) for e in case.events]
    for events in (busy, [e for e in case.events if e.kind is not EventKind.PAGE_AUDIT]):
        verdict = judge(ID, replace(case, events=tuple(events)))
        assert str(verdict.conclusion) == "unknown"
        assert "replica-0 did not tell" in verdict.reason


def test_a_replica_that_was_away_frees_later_or_never() -> None:
    """It was frozen, or died with the request."""
    fault = CLEAN.occurrences[0]
    planned = replace(fault.planned, scope=Scope.PROCESS)
    away = replace(fault, planned=planned, fired_ns=T0 + 10 * MS)
    for freed_ms in (19_000.0, None):
        case = replace(_given_up(freed_ms=freed_ms), occurrences=(away,))
        case = replace(case, events=tuple(e for e in case.events if e.kind != "page_audit"))
        assert conclusion(ID, case) == "pass"
    assert conclusion(ID, _given_up(freed_ms=19_000.0)) == "fail"


def test_without_cancels_or_without_the_telling_it_is_vacuous() -> None:
    """Nobody gave up, or nobody tells."""
    assert conclusion(ID, with_events(observes=("frees",))) == "vacuous"
    verdict = judge(ID, _given_up(observes=False, freed_ms=None))
    assert str(verdict.conclusion) == "vacuous"
    assert "does not tell" in verdict.reason
