"""From what replicas and board say to what the live page shows."""

from typing import Any

from tests.ray_jobs.live.readings import WALL_S, at, failed, heartbeat, status, told
from tocsin.core.metrics import CHAOS_RUNNING
from tocsin.dashboards.live.figures import Sample
from tocsin.dashboards.live.state import Cell, Light, LiveState
from tocsin.ray_jobs.live.collect import Collector
from tocsin.ray_jobs.live.grid import declared, table


def collector(**changes: Any) -> Collector:
    values = {
        "model": "tiny",
        "profile": "full",
        "version": "1",
        "replicas": 2,
        "switchable": True,
        **changes,
    }
    return Collector(**values)


def cell(state: LiveState, operator: str, layer: str) -> Cell:
    return next(one for one in state.cells if (one.operator, one.layer) == (operator, layer))


def test_every_declared_check_has_its_cell_and_no_other() -> None:
    """A new check appears on the page by itself."""
    state = collector().take(at(0.0, fleet={"a": heartbeat()}))
    assert {(one.operator, one.layer): one.checks for one in state.cells} == dict(declared())


def test_a_cell_is_ok_while_its_checks_run_and_idle_when_they_stop() -> None:
    """The rate is over the last ten seconds, and of dead replicas too: it never falls below 0."""
    taker = collector()
    taker.take(at(0.0, fleet={"a": heartbeat()}))
    more = heartbeat(counters={"checks": {"rope/numerical/ok": 301}})
    state = taker.take(at(4.0, fleet={"a": more}))
    assert cell(state, "rope", "numerical").per_second == 50.0
    assert cell(state, "rope", "numerical").light is Light.OK
    assert cell(state, "rope", "numerical").evaluations == 301
    for second in range(5, 25):
        state = taker.take(at(float(second), fleet={"a": more}))
    assert cell(state, "rope", "numerical").light is Light.IDLE
    assert cell(state, "swiglu", "memory").light is Light.IDLE


def test_an_alarm_shows_for_a_minute_and_is_noted_for_fifteen() -> None:
    """In the cell of the finding; then the cell is as before."""
    taker = collector()
    fleet = {"a": heartbeat()}
    state = taker.take(at(1.0, fleet=fleet, events=[failed(0.5)]))
    found = cell(state, "kv_read", "state")
    assert (found.light, found.alarms_60s, found.quiet_s) == (Light.BAD, 1, 0.5)
    assert cell(taker.take(at(62.0, fleet=fleet)), "kv_read", "state").light is Light.NOTE
    assert cell(taker.take(at(902.0, fleet=fleet)), "kv_read", "state").light is Light.IDLE


def test_a_failure_is_listed_with_its_command_newest_first() -> None:
    """Times are those of the event, not of the reading."""
    state = collector().take(at(9.0, fleet={}, events=[failed(1.0), failed(2.0)], missed=3))
    first, second = state.failures
    assert first.wall_s == WALL_S + 2.0
    assert first.command == f"tocsin reproduce {first.failure_id}"
    assert (first.ratio, first.requests, first.message) == ("12.3", 2, "page 7 changed")
    assert second.wall_s == WALL_S + 1.0
    assert (state.failures_total, state.missed) == (2, 3)


def test_a_storm_is_counted_and_only_its_end_is_kept() -> None:
    """A page cannot list five thousand failures, and must not keep them."""
    taker = collector()
    for second in range(10):
        storm = [failed(second + n / 500) for n in range(500)]
        state = taker.take(at(second + 1.0, fleet={}, events=storm))
    assert state.failures_total == 5_000
    assert len(state.failures) == 100
    assert cell(state, "kv_read", "state").alarms_60s == 2_000


def test_the_least_profile_of_all_replicas_is_shown() -> None:
    """An operator's order goes before its layer's, that before the one for everything."""
    order = {"profile": "guard", "reason": "load", "ttl_left_s": 60.0}
    orders = [
        {**order, "scope": "everything", "profile": "off"},
        {**order, "scope": "layer:numerical"},
        {**order, "scope": "operator:rope", "profile": "full"},
    ]
    fleet = {
        "a": heartbeat(switchboard={"profile": "full", "orders": orders, "audit": []}),
        "b": heartbeat(),
    }
    state = collector().take(at(0.0, fleet=fleet))
    assert cell(state, "rope", "numerical").profile == "full"
    assert cell(state, "linear", "numerical").profile == "guard"
    assert cell(state, "kv_read", "state").profile == "off"
    assert cell(state, "kv_read", "state").light is Light.OFF
    assert table(state.cells)["linear"]["numerical"] == {
        "profile": "guard",
        "checks": declared()["linear", "numerical"],
        "evaluations": 0,
        "alarms_60s": 0,
        "light": "idle",
    }


def test_an_order_is_one_row_however_many_replicas_follow_it() -> None:
    """With the longest rest of its time; the audit log joins what came within two seconds."""
    order = {"scope": "layer:state", "profile": "off", "reason": "why"}
    entry = {"scope": "layer:state", "before": "full", "after": "off", "reason": "why"}

    def board(left_s: float, wall_s: float) -> dict[str, Any]:
        orders = [{**order, "ttl_left_s": left_s}]
        return {"profile": "full", "orders": orders, "audit": [{**entry, "wall_s": wall_s}]}

    fleet = {
        "a": heartbeat(switchboard=board(10.0, WALL_S)),
        "b": heartbeat(switchboard=board(11.0, WALL_S + 0.4)),
        "dead": heartbeat(alive=False, switchboard=board(99.0, WALL_S)),
    }
    state = collector().take(at(1.0, fleet=fleet))
    (row,) = state.orders
    assert (row.scope, row.wanted, row.replicas, round(row.left_s, 1)) == (
        "layer:state",
        "off",
        2,
        10.9,
    )
    (told,) = state.audit
    assert (told.replicas, told.after, told.wall_s) == (2, "off", WALL_S)


def test_degradations_come_from_replicas_and_from_the_board() -> None:
    """One that no replica follows yet is shown as well, and who ordered it is in the audit log."""
    own = {
        "operator": "attention",
        "backend": "sdpa",
        "reason": "p0:attention",
        "ttl_left_s": 500.0,
    }
    order = {"operator": "kv_update", "backend": None, "reason": "by hand"}
    log = {"wall_s": WALL_S, "actor": "api", "ttl_s": 600.0, **order}
    degradations = {"orders": [{"serial": 1, "order": order, "left_s": 30.0}], "audit": [log]}
    fleet = {"a": heartbeat(degradations=[own])}
    state = collector().take(at(1.0, fleet=fleet, degradations=degradations))
    assert [(row.scope, row.replicas) for row in state.degradations] == [
        ("attention", 1),
        ("kv_update", 0),
    ]
    assert state.audit[0].scope == "degrade kv_update"


def test_a_lost_replica_stays_in_view_for_five_minutes() -> None:
    """Then it is history; a stalled one is told apart from one that is up."""
    fleet = {
        "a": heartbeat(stalled=True),
        "b": heartbeat(alive=False, age_s=20.0),
        "c": heartbeat(alive=False, age_s=400.0),
        "d": heartbeat(),
    }
    state = collector().take(at(0.0, fleet=fleet))
    assert {row.replica: row.status for row in state.replicas} == {
        "a": "stalled",
        "b": "down",
        "d": "up",
    }
    assert state.up == 1
    assert state.replicas[0].kv_used == 0.5


def test_a_fault_goes_from_ordered_to_fired_detected_and_healed() -> None:
    """Detected is the first alarm that is meant for it, of its replica, in its time."""
    taker = collector()
    kinds = {"kv@0": {"fault": "kv.bitflip", "replica": "a"}}
    (row,) = taker.take(at(1.0, kinds=kinds)).faults
    assert (row.state, row.fault, row.injected_s, row.fired_s) == (
        "armed",
        "kv.bitflip",
        WALL_S + 1.0,
        None,
    )
    events = [
        failed(1.0),  # before it fired
        failed(3.1, replica="b"),  # of another replica
        failed(3.2, "numerical.rope_table", operator="rope"),  # of another fault
        failed(3.3),
        failed(3.4),
    ]
    state = taker.take(
        at(4.0, kinds=kinds, statuses={"kv@0": status("fired", fired=3.0)}, events=events)
    )
    (row,) = state.faults
    assert row.fired_s == WALL_S + 3.0
    assert row.detected_s is not None
    assert round(row.detected_s - WALL_S, 3) == 3.3
    assert (row.detector, row.place) == ("state.kv_page_sum", "page 7")
    assert state.chaos
    healed = status("healed", fired=3.0, healed=4.5)
    state = taker.take(at(5.0, kinds=kinds, statuses={"kv@0": healed}))
    assert state.faults[0].healed_s == WALL_S + 4.5
    assert not state.chaos
    assert taker.take(at(6.0)).faults[0].state == "healed"  # the run forgets its orders, we do not


def test_a_struck_process_is_matched_with_what_the_board_noticed() -> None:
    """Nobody armed it at a replica: its events name the replica."""
    events = [
        told(1.0, "fault_fired", occurrence="kill@0", replica="a"),
        told(1.2, "replica_down", replica="a"),
    ]
    state = collector().take(
        at(2.0, statuses={"kill@0": status("fired", fired=1.0)}, events=events)
    )
    (row,) = state.faults
    assert (row.replica, row.detector) == ("a", "service.actor_down")


def test_an_experiment_without_a_fault_in_place_is_still_a_drill() -> None:
    """The run itself says so through its metric."""
    taker = collector()
    assert CHAOS_RUNNING.name in taker.wanted
    assert taker.take(at(0.0, samples=[Sample(CHAOS_RUNNING, (), 1.0)])).chaos
    assert not taker.take(at(1.0, samples=[Sample(CHAOS_RUNNING, (), 0.0)])).chaos
