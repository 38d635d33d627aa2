"""Readings beside the load: they are taken, and they never cost a run."""

import asyncio
import os
from typing import Any

from tests.chaos.fake_system import FakeSystem, Misbehaviour
from tocsin.chaos.vitals import AFTER, BEFORE, Vitals, held
from tocsin.core.clock import SystemClock
from tocsin.core.history import Event, EventKind
from tocsin.core.system import HealthReading, ReplicaInfo


def _vitals(system: Any) -> tuple[Vitals, list[Event]]:
    taken: list[Event] = []
    return Vitals(system, SystemClock(), taken.extend), taken


def test_a_process_is_read_by_its_pid() -> None:
    """This one: it holds memory, files and at least one thread; no other number is made up."""
    reading = held(os.getpid())
    assert reading is not None
    assert reading["rss_bytes"] > 2**20
    assert reading["fds"] >= 3
    assert reading["threads"] >= 1
    assert held(0) is None
    assert held(2**22 + 1) is None


def test_replicas_are_weighed_by_pid_or_by_their_own_word() -> None:
    """On another machine only what its heartbeat says is known; the dead hold nothing."""
    vitals, taken = _vitals(FakeSystem())
    own, far = {"fds": 7}, {"resources": {"fds": 9}}
    replicas = [
        ReplicaInfo("here", os.getpid(), "n", True, 1, 0, {"resources": own}),
        ReplicaInfo("far", 0, "n", True, 1, 0, far),
        ReplicaInfo("mute", 0, "n", True, 1, 0, {}),
        ReplicaInfo("dead", 0, "n", False, 1, 0, far),
    ]
    vitals.weigh(replicas, BEFORE)
    vitals.weigh(replicas[1:2], AFTER)
    assert [(one.replica, one.data["when"]) for one in taken] == [
        ("here", "before"),
        ("far", "before"),
        ("far", "after"),
    ]
    assert taken[0].data["fds"] != 7
    assert taken[1].data["fds"] == 9


def test_health_is_read_and_a_page_that_breaks_is_a_reading() -> None:
    """It gave no answer; the run goes on."""

    class Breaking(FakeSystem):
        def health(self) -> HealthReading:
            raise ConnectionError("refused")

    async def first(system: FakeSystem) -> Event:
        loop = asyncio.get_running_loop()
        read: asyncio.Future[Event] = loop.create_future()
        vitals = Vitals(system, SystemClock(), lambda events: read.set_result(*events))
        task = asyncio.create_task(vitals.mind_health())
        event = await read
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return event

    broken = asyncio.run(first(Breaking()))
    assert broken.kind is EventKind.HEALTH
    assert (broken.data["health_ok"], broken.data["error"]) == (None, "refused")
    lies = Misbehaviour(lies_about_health=True)
    assert asyncio.run(first(FakeSystem(wrong=lies))).data == {
        "health_ok": True,
        "checker_ok": True,
        "status": 200,
    }


def test_only_what_is_known_by_name_is_offered() -> None:
    """Health by its method, the rest by the attribute."""
    named = FakeSystem(observes=("frees", "gossip"))
    assert _vitals(named)[0].offered() == ["frees", "health"]
    assert _vitals(object())[0].offered() == []
