"""The board: who lives, what they must do, and what happened, from heartbeats alone."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pytest

from tocsin.core.faulting import Order, OrderStatus
from tocsin.ray_jobs import board as module
from tocsin.ray_jobs.actor_death import Inquiry
from tocsin.ray_jobs.board import Board

NODE = "node-1"


def beat(pid: int, **changes: Any) -> dict[str, Any]:
    return {"pid": pid, "node": NODE, "events": [], "statuses": [], "step": 0, **changes}


def kinds(board: Board) -> list[str]:
    return [event["kind"] for event in board.events(0)[1]]


@pytest.fixture
def board() -> Board:
    made = Board()
    made._node = NODE
    return made


@pytest.fixture
def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


async def test_the_first_heartbeat_is_an_arrival(board: Board) -> None:
    """And the second one is not."""
    await board.beat("a", beat(os.getpid()))
    await board.beat("a", beat(os.getpid(), step=4))
    assert kinds(board) == ["replica_up"]
    assert board.replicas()["a"]["step"] == 4


async def test_a_process_that_is_gone_is_a_replica_that_is_down(
    board: Board, dead_pid: int
) -> None:
    """Seen from the process itself, without waiting for a timeout; told once."""
    await board.beat("a", beat(dead_pid))
    for _ in range(2):
        board._look_at("a", board._replicas["a"])
    assert kinds(board) == ["replica_up", "replica_down"]
    assert not board.replicas()["a"]["alive"]


async def test_a_pid_of_another_node_is_not_looked_up_here(board: Board, dead_pid: int) -> None:
    """There it may well live; only silence tells."""
    await board.beat("a", beat(dead_pid, node="elsewhere"))
    board._look_at("a", board._replicas["a"])
    assert board.replicas()["a"]["alive"]
    board._replicas["a"]["heard_s"] = time.monotonic() - module.GONE_S - 1
    board._look_at("a", board._replicas["a"])
    assert kinds(board)[-1] == "replica_down"


async def test_of_a_silent_replica_on_another_node_ray_is_asked_whether_it_is_dead(
    board: Board, dead_pid: int
) -> None:
    """Twenty seconds of silence are long, and Ray knows at once; one that lives is left alone."""
    dead: set[str] = set()
    asked = []

    def is_dead(actor: str) -> bool:
        asked.append(actor)
        return actor in dead

    board._inquiry = Inquiry(lambda replica: board.lost(replica, "dead"), is_dead)
    await board.beat("a", {**beat(dead_pid, node="elsewhere"), "actor": "a1"})
    board._look_at("a", board._replicas["a"])
    assert asked == []
    board._replicas["a"]["heard_s"] = time.monotonic() - module.STALE_S - 0.1
    for living in (True, False):
        dead |= set() if living else {"a1"}
        board._inquiry._asked.clear()
        for _ in range(3):  # as long as one answer is awaited, none is asked for
            board._look_at("a", board._replicas["a"])
        await board._inquiry._asked["a"][1]
        assert board.replicas()["a"]["alive"] is living
    assert asked == ["a1", "a1"]
    assert kinds(board) == ["replica_up", "replica_stalled", "replica_down"]


@pytest.fixture
def stopped_pid() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    yield process.pid
    process.kill()
    process.wait()


async def test_silence_of_a_stopped_process_is_a_stall_until_it_beats_again(
    board: Board, stopped_pid: int
) -> None:
    """Told at its beginning and at its end."""
    await board.beat("a", beat(stopped_pid))
    board._look_at("a", board._replicas["a"])
    assert kinds(board) == ["replica_up"]
    board._replicas["a"]["heard_s"] = time.monotonic() - module.STALE_S - 0.1
    for _ in range(2):
        board._look_at("a", board._replicas["a"])
    assert board.replicas()["a"]["stalled"]
    await board.beat("a", beat(stopped_pid))
    assert kinds(board) == ["replica_up", "replica_stalled", "replica_resumed"]


async def test_a_process_that_runs_is_given_longer_than_one_that_is_stopped(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine a heartbeat may be late; one that hangs is found all the same."""
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    await board.beat("a", beat(os.getpid()))
    now[0] += module.STALE_S + 0.5
    board._look_at("a", board._replicas["a"])
    assert not board.replicas()["a"]["stalled"]
    now[0] += module.STARVED_S
    board._look_at("a", board._replicas["a"])
    assert board.replicas()["a"]["stalled"]


async def test_a_replica_said_to_be_dead_stays_so_when_a_late_heartbeat_arrives(
    board: Board,
) -> None:
    """Its last words were on their way; its counters count, it does not rise again."""
    await board.beat("a", beat(os.getpid()))
    board.lost("a", "ActorDiedError")
    await board.beat("a", beat(os.getpid(), counters={"steps": 9}))
    assert not board.replicas()["a"]["alive"]
    assert board.replicas()["a"]["counters"] == {"steps": 9}


async def test_an_order_reaches_only_its_replica_and_a_new_one_moves_it(board: Board) -> None:
    """The run re-targets an occurrence when its replica died."""
    order = asdict(Order("kv@1", "kv.bitflip", 1, 2, 15.0))
    await board.arm("a", order)
    assert [o["occurrence"] for o in (await board.poll("a", -1))["orders"]] == ["kv@1"]
    assert (await board.poll("b", -1))["orders"] == []
    await board.arm("b", order)
    assert (await board.poll("a", -1))["orders"] == []
    assert len((await board.poll("b", -1))["orders"]) == 1


async def test_a_waiting_poll_hears_of_a_change_at_once(board: Board) -> None:
    """Not at its timeout."""
    revision = (await board.poll("a", -1))["revision"]
    waiting = asyncio.ensure_future(board.poll("a", revision, timeout_s=60.0))
    await asyncio.sleep(0)
    await board.renew(15.0)
    answer = await asyncio.wait_for(waiting, 5.0)
    assert answer["lease"] == {"serial": 1, "ttl_s": 15.0}


async def test_a_poll_without_a_change_ends_by_itself(board: Board) -> None:
    """So that a board that was replaced is noticed."""
    revision = (await board.poll("a", -1))["revision"]
    assert (await board.poll("a", revision, timeout_s=0.01))["revision"] == revision


async def test_a_restarted_replica_finds_the_switches_in_force_and_not_the_old_ones(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what is left of their time, also when somebody sets the clock meanwhile."""
    now, wall = [1000.0], [5e8]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(module.time, "time", lambda: wall[0])
    await board.switch({"profile": "off", "ttl_s": 10.0, "reason": "r"})
    await board.switch({"profile": "guard", "ttl_s": 60.0, "reason": "r"})
    now[0], wall[0] = now[0] + 20.0, wall[0] + 3600.0
    found = (await board.poll("new", -1))["switches"]
    assert [(s["order"]["profile"], s["left_s"]) for s in found] == [("guard", 40.0)]


async def test_a_new_run_takes_back_the_orders_of_an_older_one(board: Board) -> None:
    """And does not see their statuses as its own."""
    await board.arm("a", asdict(Order("kv@1", "kv.bitflip", 1, 2, 15.0)))
    await board.beat("a", beat(1, statuses=[asdict(OrderStatus("kv@1", "armed"))]))
    await board.forget_orders()
    found = await board.poll("a", -1)
    assert found["orders"] == []
    assert found["disarmed"] == ["kv@1"]
    assert board.statuses() == {}


async def test_events_have_numbers_that_go_on_when_the_oldest_are_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A reader that comes late misses the dropped ones and none of the others."""
    monkeypatch.setattr(module, "EVENTS_MAX", 3)
    small = Board()
    for number in range(5):
        small.put_event({"number": number})
    following, found = small.events(0)
    assert [event["number"] for event in found] == [2, 3, 4]
    assert following == 5
    small.put_event({"number": 5})
    assert [event["number"] for event in small.events(following)[1]] == [5]


def test_the_actors_that_only_count_do_not_load_torch() -> None:
    """Board and hub start beside the replicas, one a node: it would be seconds and 300 MB each."""
    said = "import sys, tocsin.ray_jobs.hub; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr


async def test_only_the_application_of_a_job_that_ended_is_left_behind(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was deployed to stay has no such job, and old jobs are forgotten by Ray."""
    table = [{"JobID": "02000000", "IsDead": False}, {"JobID": "03000000", "IsDead": True}]
    monkeypatch.setattr("ray._private.state.jobs", lambda: table)
    assert not await board.left_behind()
    left = []
    for job in ("02000000", "03000000", "01000000"):
        await board.deployed_by(job)
        left.append(await board.left_behind())
    assert left == [False, True, True]
