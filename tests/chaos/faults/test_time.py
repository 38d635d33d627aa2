"""Faults of a replica's time: slow steps, a lock that is held, a wall clock that lies."""

import ctypes
from typing import Any

import pytest

from tocsin.chaos.faults.actor.gil_lock import hold
from tocsin.core.clock import ManualClock, OffsetClock, SystemClock, is_real

each_that_holds = pytest.mark.parametrize(
    ("kind", "name"), [("actor.slow", "delay_s"), ("actor.gil_lock", "hold_s")]
)


def _clock(worker: Any) -> OffsetClock:
    return worker.armoury._clock


@pytest.mark.parametrize(
    ("kind", "name"), [("actor.slow", "delay_s"), ("actor.gil_lock", "hold_s")]
)
def test_so_many_decode_steps_take_so_much_longer(worker: Any, kind: str, name: str) -> None:
    """Each of the three by half a second, and the fourth not at all."""
    worker.arm(kind, times=3, **{name: 0.5})
    took = []
    for _ in range(4):
        before = worker.clock.now_ns()
        worker.decode()
        took.append((worker.clock.now_ns() - before) / 1e9)
    assert took == [0.5, 0.5, 0.5, 0.0]
    worker.armoury.tick(worker.step)
    assert worker.status().state == "healed"


@pytest.mark.parametrize(
    ("kind", "name"), [("actor.slow", "delay_s"), ("actor.gil_lock", "hold_s")]
)
@pytest.mark.parametrize("value", [0, -1.0, 11.0, "long"])
def test_a_time_that_no_replica_may_be_held_for_is_refused(
    worker: Any, kind: str, name: str, value: object
) -> None:
    """Before anything has happened."""
    worker.arm(kind, **{name: value})
    worker.decode()
    assert worker.status().state == "disarmed"
    assert "at most 10" in worker.status().error
    assert worker.clock.now_ns() == 0


def test_the_lock_is_held_for_the_whole_time_in_short_sleeps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Through the interface that keeps it; usleep(3) may refuse a second at once."""
    slept: list[int] = []

    class Library:
        def __init__(self, name: object) -> None:
            assert name is None

        def usleep(self, microseconds: ctypes.c_uint) -> None:
            slept.append(microseconds.value)

    monkeypatch.setattr(ctypes, "PyDLL", Library)
    hold(1.2)
    assert slept == [500_000, 500_000, 200_000]


def test_a_jump_moves_wall_time_alone_and_is_taken_back(worker: Any) -> None:
    """Who waits by monotonic time cannot tell; healed, both clocks say what they did."""
    order = worker.arm("clock.jump", seconds=-60.0)
    worker.decode()
    clock = _clock(worker)
    assert clock.now_ns() == worker.clock.now_ns()
    assert clock.wall_s() == worker.clock.wall_s() - 60.0
    worker.armoury.disarm(order.occurrence)
    assert clock.wall_s() == worker.clock.wall_s()


def test_a_skewed_clock_runs_away_and_says_the_right_time_again_afterwards(worker: Any) -> None:
    """Three seconds of every one that passes."""
    order = worker.arm("clock.skew", rate=4.0)
    worker.decode()
    worker.clock.sleep(10.0)
    assert _clock(worker).offset_s() == pytest.approx(30.0)
    worker.armoury.disarm(order.occurrence)
    assert _clock(worker).wall_s() == worker.clock.wall_s()
    worker.clock.sleep(10.0)
    assert _clock(worker).offset_s() == 0.0


@pytest.mark.parametrize(
    ("kind", "params"),
    [("clock.jump", {"seconds": 0}), ("clock.skew", {"rate": 1}), ("clock.skew", {"rate": -2.0})],
)
def test_a_clock_that_would_not_change_is_refused(
    worker: Any, kind: str, params: dict[str, float]
) -> None:
    """A fault without a change proves nothing."""
    worker.arm(kind, **params)
    worker.decode()
    assert worker.status().state == "disarmed"
    assert "expected" in worker.status().error


def test_only_the_machines_time_is_waited_for_in_earnest() -> None:
    """A clock around another one is as real as that."""
    assert is_real(SystemClock())
    assert is_real(OffsetClock(SystemClock()))
    assert not is_real(OffsetClock(ManualClock()))
