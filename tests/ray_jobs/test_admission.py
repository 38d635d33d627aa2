"""The door: as many as there is room for, and the others are told when to come again."""

from contextlib import ExitStack

import pytest

from tocsin.core.clock import ManualClock
from tocsin.core.errors import CapacityError
from tocsin.ray_jobs.admission import Admission, CrowdedError


def test_there_is_room_again_when_somebody_leaves() -> None:
    """Also when a request ends by breaking."""
    door = Admission(lambda: 1, ManualClock())
    with door.seat("a"), pytest.raises(CrowdedError, match="1 requests are under way"):
        door.seat("b").__enter__()
    with pytest.raises(RuntimeError), door.seat("c"):
        raise RuntimeError
    with door.seat("d"):
        assert door.inside == 1
    assert door.inside == 0


def test_it_is_the_error_that_the_gateway_answers_with_429() -> None:
    """Like the engine's own."""
    assert issubclass(CrowdedError, CapacityError)


def _after_s(door: Admission, name: str) -> int:
    with pytest.raises(CrowdedError) as caught:
        door.seat(name).__enter__()
    return caught.value.retry_after_s


def test_who_is_turned_away_together_does_not_come_again_together() -> None:
    """Spread over the time in which what is inside drains, a request's share drawn by its name."""
    clock = ManualClock()
    door = Admission(lambda: 40, clock)
    for number in range(20):  # two a second
        with door.seat(f"before-{number}"):
            clock.sleep(0.5)
    with ExitStack() as inside:
        for number in range(40):
            inside.enter_context(door.seat(f"inside-{number}"))
        found = [_after_s(door, f"away-{number}") for number in range(200)]
        assert found == [_after_s(door, f"away-{number}") for number in range(200)]
    assert min(found) == 1
    assert 15 <= max(found) <= 20  # forty inside, two a second
    assert len(set(found)) >= 10


def test_where_nothing_ends_it_is_some_seconds_and_never_more_than_half_a_minute() -> None:
    """No rate, no estimate; a very low one does not send people away for good."""
    clock = ManualClock()
    door = Admission(lambda: 500, clock)
    with ExitStack() as inside:
        for number in range(500):
            inside.enter_context(door.seat(f"inside-{number}"))
        assert {_after_s(door, f"{n}") for n in range(50)} == {1, 2}
    clock.sleep(9.5)
    with ExitStack() as inside:
        for number in range(500):
            inside.enter_context(door.seat(f"again-{number}"))
        assert max(_after_s(door, f"{n}") for n in range(500)) <= 30


def test_a_door_that_turns_nobody_away_keeps_nothing_of_who_left() -> None:
    """A gateway serves for months: what it remembers is bounded by the window."""
    clock = ManualClock()
    door = Admission(lambda: 40, clock)
    for number in range(500):
        with door.seat(f"r-{number}"):
            clock.sleep(1.0)
    assert len(door._ended_ns) <= 11
