"""An alarm that stands: raised for one fault, and still there when the next of its kind comes."""

from dataclasses import replace

import pytest

from tests.chaos.histories import MS, clean_case
from tocsin.chaos.attribution import attribute
from tocsin.chaos.case import Case, OccurrenceRecord
from tocsin.core.faulting import Evidence, Scope
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


def test_with_a_node_go_all_its_replicas_and_no_others() -> None:
    """The loss of a second one there is no alarm without a fault; elsewhere, and else, it is."""
    (bout,) = (_bout(0, "node.kill"),)
    expect = replace(bout.planned.expect, detectors=("service.actor_down",))
    planned = replace(bout.planned, scope=Scope.NODE, expect=expect)
    evidence = Evidence("raylet of node 0123456789ab, pid 7", "runs", "gone")
    killed = replace(bout, planned=planned, evidence=evidence)
    at, here = bout.fired_ns + 500 * MS, {"node": "0123456789abcdef"}
    told = (
        Event(EventKind.REPLICA_DOWN, at, "replica-0", data=here),
        Event(EventKind.REPLICA_DOWN, at, "replica-1", data=here),
        Event(EventKind.REPLICA_DOWN, at, "replica-2", data={"node": "fedcba9876543210"}),
        Event(EventKind.CLOCK_MOVED, at, "replica-1", data=here),
    )
    found = attribute(clean_case(occurrences=(killed,), events=told))
    assert len(found.by_occurrence["slow@0"]) == 2
    assert [(one.detector, one.replica) for one in found.false_alarms] == [
        ("service.actor_down", "replica-2"),
        ("service.clock", "replica-1"),
    ]


def test_an_alarm_of_another_kind_of_fault_is_not_lent() -> None:
    """Each kind must show by itself that it is seen."""
    told = (SLOW, 500, "replica-0"), (STEADY, 4_500, "replica-0")
    assert attribute(_case(*told, kind="actor.gil_lock")).first_expected("slow@1") is None
