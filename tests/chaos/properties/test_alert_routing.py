"""One alert an incident, to the right people, with what they need, and not lost."""

from dataclasses import replace
from typing import Any

import pytest

from tests.chaos.histories import alarm, clean_case, with_expectation
from tests.chaos.properties.told import FIRED, conclusion, event, first, judge, with_events
from tocsin.chaos.case import Case
from tocsin.chaos.properties.alert.routing import ROUTES
from tocsin.core.faulting import Scope
from tocsin.core.history import Event, EventKind
from tocsin.core.terms import Priority
from tocsin.dashboards.render.alertmanager import ARCHIVE, PAGE, TICKET

ID = "alert.routing"


def _sent(**changes: Any) -> Event:
    told = {
        "alert": "operator_failing",
        "priority": "P0",
        "route": "p0-page",
        "incident": "F1",
        "run": "run-1",
        "repro": "repro/F1",
        "result": "ok",
    }
    return event(EventKind.ALERT_SENT, FIRED, "board", **{**told, **changes})


def _case(*events: Event, severity: str = "P0") -> Case:
    """The fault's alarm has a failure id, and the system tells its alerts."""
    told = with_events(*events, observes=("alerts",))
    heard = alarm(FIRED, "state.weight_sum", failure_id="F1")
    told = clean_case(events=(heard, *told.events[1:]), facts=told.facts)
    return with_expectation(told, severity=severity)


def test_the_routes_are_those_of_the_rendered_configuration() -> None:
    """Declared there, mirrored here: chaos may not import it."""
    assert ROUTES == {Priority.P0: PAGE, Priority.P1: TICKET, Priority.P2: ARCHIVE}


def test_one_alert_for_the_incident_passes() -> None:
    """Named by the failure, or by the occurrence."""
    assert conclusion(ID, _case(_sent())) == "pass"
    assert conclusion(ID, _case(_sent(incident="weights@0"))) == "pass"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"route": "p2-archive"}, "priority P0 went to p2-archive, not p0-page"),
        ({"route": ""}, "went to nobody"),
        ({"result": "dead_letter"}, "was not delivered: dead_letter"),
        ({"run": ""}, "names no run"),
        ({"repro": ""}, "names no repro"),
        ({"incident": "F9"}, "weights@0: nobody was alerted at all, expected P0"),
        ({"priority": "P1", "route": "p1-ticket"}, "nobody was alerted only with P1, expected P0"),
    ],
)
def test_an_alert_that_misses_its_people_fails(changes: dict[str, Any], words: str) -> None:
    """Each way of it, in words."""
    assert words in first(ID, _case(_sent(**changes)))


@pytest.mark.parametrize(
    "named",
    [{"failure_id": "F1"}, {"detector": "state.weight_sum"}, {"subject": "replica-0"}],
    ids=str,
)
def test_the_alert_of_a_rule_names_the_incident_in_its_own_way(named: dict[str, str]) -> None:
    """By the failure of its annotations, by the check of its labels, or by the replica."""
    rule = {"incident": "TocsinStateFailure m linear #1", **named}
    assert conclusion(ID, _case(_sent(**rule), severity="")) == "pass"
    assert conclusion(ID, _case(_sent(incident="another"), severity="")) == "fail"


def test_a_drill_tells_those_who_want_to_hear_of_drills() -> None:
    """Its alerts must not page; in earnest nobody may be told there instead."""
    drilled = _sent(route="drill", drill=True)
    assert conclusion(ID, _case(drilled)) == "pass"
    assert conclusion(ID, _case(_sent(route="drill", drill=False))) == "fail"
    assert conclusion(ID, _case(drilled, _sent(drill=True))) == "pass"


def test_where_drills_go_on_to_people_each_alert_must_reach_its_own() -> None:
    """One that ends at the drills' receiver alone would have woken nobody."""
    proof = (_sent(route="drill", drill=True), _sent(drill=True))
    lost = _sent(route="drill", drill=True, incident="F2", alert="state_failure")
    assert "went to drill alone" in first(ID, _case(*proof, lost))


def test_an_alert_that_was_over_before_the_fault_tells_of_another() -> None:
    """The same check alarmed an hour ago; whoever was told then knows nothing of this."""
    named = {"incident": "TocsinStateFailure #1", "detector": "state.weight_sum"}
    sent = _sent(**named)
    over = event(EventKind.ALERT_ENDED, FIRED - 1, "alertmanager", incident=named["incident"])
    lasts = event(EventKind.ALERT_ENDED, FIRED + 1, "alertmanager", incident=named["incident"])
    assert conclusion(ID, _case(sent, lasts, severity="")) == "pass"
    assert "nobody was alerted" in first(ID, _case(sent, over, severity=""))


def test_where_alerts_could_not_be_read_nobody_is_accused() -> None:
    """Unknown, with the reason; what was read and is wrong stays wrong."""
    unread = event(EventKind.ALERTS_UNREAD, FIRED, "alertmanager", why="http://am: no answer")
    verdict = judge(ID, _case(unread))
    assert str(verdict.conclusion) == "unknown"
    assert "1 incidents without an alert, but http://am: no answer" in verdict.reason
    assert conclusion(ID, _case(unread, _sent(route=""))) == "fail"


def test_what_a_graver_alert_speaks_for_is_not_lost_and_what_is_silenced_is() -> None:
    """Who is paged about an operator needs no ticket about it."""
    assert conclusion(ID, _case(_sent(result="inhibited"))) == "pass"
    assert "was not delivered: silenced" in first(ID, _case(_sent(result="silenced")))


def test_an_experiment_that_names_no_priority_takes_that_of_the_rule() -> None:
    """A failure that was repaired in its step is archived, however grave it would have been."""
    archived = _sent(priority="P2", route="p2-archive")
    assert conclusion(ID, _case(archived, severity="")) == "pass"
    assert "only with P2, expected P0" in first(ID, _case(archived))


def test_sending_again_what_was_not_taken_is_no_second_alert() -> None:
    """The last word counts; two deliveries are one too many."""
    assert conclusion(ID, _case(_sent(result="retried"), _sent())) == "pass"
    assert "delivered 2 times" in first(ID, _case(_sent(), _sent()))
    assert "retried" in first(ID, _case(_sent(result="retried")))


def test_an_incident_of_which_nobody_was_told_fails_only_where_alerts_are_told() -> None:
    """A system that does not tell its alerts is vacuous, one that tells none of this is not."""
    assert "nobody was alerted" in first(ID, _case())
    assert conclusion(ID, with_events()) == "vacuous"
    assert conclusion(ID, with_events(_sent())) == "pass"


def test_what_nobody_saw_and_what_only_a_client_saw_alerts_nobody() -> None:
    """The one is detection's affair, the other is no incident."""
    unseen = with_events(observes=("alerts",))
    assert conclusion(ID, clean_case(facts=unseen.facts, events=())) == "vacuous"
    case = _case()
    planned = replace(case.occurrences[0].planned, scope=Scope.CLIENT)
    turned_away = replace(case, occurrences=(replace(case.occurrences[0], planned=planned),))
    assert conclusion(ID, turned_away) == "vacuous"
