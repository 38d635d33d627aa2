"""Virtual time goes by in no time, in one order, and whoever waits in vain is told so."""

import asyncio
import gc

import pytest

from tocsin.core.errors import TocsinError
from tocsin.core.ids import new_ulid
from tocsin.core.virtual import VirtualClock, run_virtually


def test_a_day_passes_at_once_and_in_order():
    """Sleepers wake by their times, whoever lay down first."""
    clock, woken = VirtualClock(), []

    async def sleeper(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        woken.append((name, clock.now_ns()))

    async def main() -> None:
        await asyncio.gather(sleeper("day", 86_400.0), sleeper("noon", 43_200.0))

    began_ns = clock.now_ns()
    run_virtually(main(), clock)
    hours = [(name, (ns - began_ns) / 3.6e12) for name, ns in woken]
    assert hours == [("noon", pytest.approx(12.0)), ("day", pytest.approx(24.0))]


def test_calls_for_a_thread_are_made_at_once_and_raise_where_they_are_awaited():
    """The virtual time does not move while they last."""
    clock = VirtualClock()

    async def main() -> tuple[int, int]:
        before_ns = clock.now_ns()
        answer = await asyncio.to_thread(lambda: 6 * 7)
        with pytest.raises(KeyError):
            await asyncio.to_thread({}.__getitem__, "nothing")
        return answer, clock.now_ns() - before_ns

    assert run_virtually(main(), clock) == (42, 0)


def test_those_who_wait_for_each_other_are_told():
    """In real time such a run would hang."""

    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(TocsinError, match="everybody waits"):
        run_virtually(main(), VirtualClock())


def test_ids_come_from_the_seed_inside_and_from_the_system_outside():
    """Tasks share one source; another seed, other ids."""

    async def main() -> list[str]:
        async def one() -> str:
            await asyncio.sleep(0.1)
            return new_ulid(wall_ms=0)

        return [new_ulid(wall_ms=0), *await asyncio.gather(one(), one())]

    first, second = (run_virtually(main(), VirtualClock(), seed=3) for _ in range(2))
    assert first == second
    assert len(set(first)) == 3
    assert run_virtually(main(), VirtualClock(), seed=4) != first
    assert new_ulid(wall_ms=0) != new_ulid(wall_ms=0)


def test_the_collector_is_as_it_was_afterwards():
    """Also when the program fails."""

    async def main() -> None:
        assert not gc.isenabled()
        raise ValueError("it fails")

    with pytest.raises(ValueError, match="it fails"):
        run_virtually(main(), VirtualClock())
    assert gc.isenabled()
