"""An alarm that stands: raised for one fault, and still there when the next of its kind comes."""

from dataclasses import replace

import pytest

from tests.chaos.histories import MS, clean_case
from tocsin.chaos.attribution import attribute
from tocsin.chaos.case import Case, OccurrenceRecord
from tocsin.core.faulting import Scope
from tocsin.core.history import Event, EventKind

SLOW, STEADY = EventKind.REPLICA_SLOW, EventKind.REPLICA_STEADY
BOUT_MS, PAUSE_MS = 2_000, 100


def _bout(number: int, kind: str = "actor.slow") -> OccurrenceRecord:
    """Two seconds of slow steps; the second bout begins a tenth of a second after the first."""
    (one,) = clean_case().occurrences
    fired_ns = one.fired_ns + number * (BOUT_MS + PAUSE_MS) * MS
    expect = replace(one.planned.expect, detectors=("service.straggler",), within_s=3.0)
    planned = replace(one.planned, id=f"slow@{number}", kind=kind, expect=expect)
    return replace(one, planned=planned, fired_ns=fired_ns, healed_ns=fired_ns + BOUT_MS * MS)


def _case(*told: tuple[EventKind, int, str], kind: str = "actor.slow") -> Case:
    """Two bouts, and what was told so many milliseconds after the first had begun."""
    bouts = (_bout(0), _bout(1, kind))
    events = (Event(what, bouts[0].fired_ns + at * MS, who) for what, at, who in told)
    return clean_case(occurrences=bouts, events=tuple(events))


def test_it_has_seen_both_when_it_ends_with_the_second() -> None:
    """Called off 0.4 s after the second: had it not seen that, it would have ended before."""
    case = _case((SLOW, 500, "replica-0"), (STEADY, 4_500, "replica-0"))
    first, second = (attribute(case).first_expected(one.planned.id) for one in case.occurrences)
    assert first is not None
    assert second is not None
    assert (first.standing, first.latency_ms) == (False, 500.0)
    assert (second.standing, second.latency_ms) == (True, 0.0)
    assert attribute(case).false_alarms == ()


@pytest.mark.parametrize(
    "told",
    [
        [],
        [(STEADY, 2_050, "replica-0")],
        [(STEADY, 3_000, "replica-0")],
        [(STEADY, 9_000, "replica-0")],
        [(STEADY, 4_500, "replica-1")],
    ],
    ids=["never ends", "ends between", "ends within", "ends too late", "of another replica"],
)
def test_anything_else_shows_nothing(told: list[tuple[EventKind, int, str]]) -> None:
    """An alarm that is stuck, or is over before the second fault is, has not seen it."""
    case = _case((SLOW, 500, "replica-0"), *told)
    assert attribute(case).first_expected("slow@0") is not None
    assert attribute(case).first_expected("slow@1") is None


def test_with_a_node_go_all_its_replicas() -> None:
    """The loss of a second one is no alarm without a fault; what else it tells is."""
    bouts = (_bout(0, "node.kill"),)
    expect = replace(bouts[0].planned.expect, detectors=("service.actor_down",))
    planned = replace(bouts[0].planned, scope=Scope.NODE, expect=expect)
    at = bouts[0].fired_ns + 500 * MS
    told = tuple(
        Event(kind, at, who)
        for kind, who in (
            (EventKind.REPLICA_DOWN, "replica-0"),
            (EventKind.REPLICA_DOWN, "replica-1"),
            (EventKind.CLOCK_MOVED, "replica-1"),
        )
    )
    case = clean_case(occurrences=(replace(bouts[0], planned=planned),), events=told)
    found = attribute(case)
    assert len(found.by_occurrence["slow@0"]) == 2
    assert [one.detector for one in found.false_alarms] == ["service.clock"]


def test_an_alarm_of_another_kind_of_fault_is_not_lent() -> None:
    """Each kind must show by itself that it is seen."""
    told = (SLOW, 500, "replica-0"), (STEADY, 4_500, "replica-0")
    assert attribute(_case(*told, kind="actor.gil_lock")).first_expected("slow@1") is None
