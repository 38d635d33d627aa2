"""Faults that are aimed at no replica: what allows them, when they come, whose their alarms are."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.experiments import small
from tests.chaos.fake_system import FakeSystem
from tests.chaos.histories import MS, clean_case
from tocsin.chaos import wal
from tocsin.chaos.attribution import attribute
from tocsin.chaos.case import Case, OccurrenceRecord
from tocsin.chaos.plan import make_plan, plan_table
from tocsin.chaos.run import run
from tocsin.chaos.spec_file import parse_experiment
from tocsin.chaos.store import load_case
from tocsin.chaos.watch import Watch
from tocsin.core.errors import SpecError
from tocsin.core.faulting import Scope
from tocsin.core.history import Event, EventKind

DELAY = {"id": "late", "kind": "net.delay", "when": {"clock": "request", "at": [5]}}
OUTAGE = {"id": "away", "kind": "gcs.outage", "when": {"clock": "request", "at": [5]}}
NODE = {"id": "node", "kind": "node.kill", "when": {"clock": "request", "at": [5]}}


@pytest.mark.parametrize(
    ("fault", "changes", "words"),
    [
        (DELAY, {"safety": {"scope": "in_process"}}, "acts on the network"),
        (OUTAGE, {}, "acts on Ray itself, safety.scope is isolated"),
        (NODE, {}, "acts on Ray nodes"),
        (NODE, {"safety": {"scope": "cluster_destructive"}}, "set system.nodes to 2"),
        (
            {**DELAY, "when": {"clock": "decode_step", "at": [5]}},
            {},
            "expected request for net.delay",
        ),
        (
            NODE,
            {
                "safety": {"scope": "cluster_destructive", "keep_alive": 2},
                "system": {"replicas": 2, "nodes": 2},
            },
            "keep_alive wants 2 left",
        ),
    ],
)
def test_a_fault_beyond_what_is_allowed_is_refused_in_words(
    fault: dict[str, Any], changes: dict[str, Any], words: str
) -> None:
    """Before anything is served."""
    with pytest.raises(SpecError, match=words):
        parse_experiment(small(faults=[fault], **changes))


@pytest.mark.parametrize("fault", [DELAY, OUTAGE, NODE])
def test_a_ceiling_that_is_high_enough_allows_them(fault: dict[str, Any]) -> None:
    """One replica is enough where none is taken, and the plan says whom it is about."""
    taken = fault is NODE
    spec = parse_experiment(
        small(
            faults=[fault],
            safety={"scope": "cluster_destructive", "keep_alive": 1},
            system={"replicas": 2 if taken else 1, "nodes": 2 if taken else 1},
        )
    )
    plan = make_plan(spec)
    if not taken:
        assert str(plan.occurrences[0].scope) in plan_table(plan)


def test_a_fault_on_the_network_is_alone_recorded_and_seen(tmp_path: Path) -> None:
    """Through a whole run: no other fault is open meanwhile, its alarm is its own."""
    faults = [
        {
            "id": "weights",
            "kind": "weight.bitflip",
            "target": {"replica": "each"},
            "when": {"clock": "decode_step", "at": [5, 25]},
            "expect": {"within": "300ms", "recover_within": "5s"},
        },
        {**DELAY, "expect": {"within": "300ms", "recover_within": "5s"}},
    ]
    spec = parse_experiment(small(faults=faults, workload={"requests": 200}))
    assert run(spec, FakeSystem(), tmp_path) == 0
    case = load_case((tmp_path / "latest").resolve())
    (late,) = [one for one in case.occurrences if one.planned.kind == "net.delay"]
    assert late.replica == "network"
    for other in case.occurrences:
        if other is not late:
            assert other.healed_ns < late.ordered_ns or late.healed_ns < other.ordered_ns
    (seen,) = attribute(case).by_occurrence["late@0"]
    assert (seen.detector, seen.replica, seen.expected) == ("service.latency", "network", True)


def test_the_intent_holds_for_as_long_as_the_fault_may_last(tmp_path: Path) -> None:
    """`chaos heal` waits for the longer of lease and duration: there is no process to look at."""
    fault = {**DELAY, "params": {"duration_s": 25.0}}
    run(parse_experiment(small(faults=[fault])), FakeSystem(), tmp_path)
    records = wal.read((tmp_path / "latest").resolve() / wal.NAME).records
    (intent,) = [one for one in records if one["type"] == "intent"]
    assert (intent["replica"], intent["pid"], intent["ttl_s"]) == ("network", 0, 25.0)


def _case_of(scope: Scope, about: str, *events: tuple[EventKind, str]) -> Case:
    """The clean case, its fault of another scope, with alarms 100 ms after it fired."""
    case = clean_case()
    (record,) = case.occurrences
    record = replace(
        record,
        replica=about,
        planned=replace(record.planned, scope=scope, expect=_expecting(record)),
    )
    alarms = tuple(
        Event(kind, record.fired_ns + 100 * MS, "board", data={"replica": subject})
        for kind, subject in events
    )
    return replace(case, occurrences=(record,), events=alarms)


def _expecting(record: OccurrenceRecord) -> Any:
    detectors = ("service.start", "service.control_plane", "service.latency")
    return replace(record.planned.expect, detectors=detectors)


@pytest.mark.parametrize(
    ("scope", "about", "kind", "subject", "belongs"),
    [
        (Scope.PROCESS, "replica-0", EventKind.START_FAILED, "replica-7", True),
        (Scope.NODE, "replica-0", EventKind.START_FAILED, "replica-7", True),
        (Scope.WORKER, "replica-0", EventKind.START_FAILED, "replica-7", False),
        (Scope.CLUSTER, "cluster", EventKind.CONTROL_DOWN, "cluster", True),
        (Scope.CLUSTER, "cluster", EventKind.REPLICA_STALLED, "replica-1", True),
        (Scope.NETWORK, "network", EventKind.ROAD_SLOW, "network", True),
        (Scope.NETWORK, "network", EventKind.REPLICA_DOWN, "replica-1", False),
        (Scope.PROCESS, "replica-0", EventKind.REPLICA_DOWN, "replica-1", False),
    ],
)
def test_an_alarm_belongs_to_the_fault_that_can_have_caused_it(
    scope: Scope, about: str, kind: EventKind, subject: str, belongs: bool
) -> None:
    """Who failed to start is nobody's neighbour; the network takes no replica down."""
    case = _case_of(scope, about, (kind, subject))
    (alarm,) = attribute(case).detections
    assert bool(alarm.occurrence) is belongs
    assert len(attribute(case).false_alarms) == (not belongs)
    watch = Watch()
    watch.take(case.events)
    assert watch.seen(case.occurrences[0]) is alarm.expected


def test_a_wrong_number_is_never_the_network_s() -> None:
    """A check that alarms while Ray is unwell is a false alarm all the same."""
    case = _case_of(Scope.CLUSTER, "cluster")
    finding = {"findings": [{"check": "numerical.finite"}], "replica": "replica-0"}
    event = Event(EventKind.CHECK_FAILED, case.occurrences[0].fired_ns + MS, "r", data=finding)
    assert len(attribute(replace(case, events=(event,))).false_alarms) == 1
