"""Virtual time: a clock that jumps, an event loop that never waits, and ids that can be foretold.

Under `run_virtually` a program of coroutines goes the same way each time: time moves only when
nothing is left to do at this instant, and then to the next timer; calls for a thread are made at
once; garbage is collected at the same points. What is left of chance is the program's own to draw.
"""

import asyncio
import gc
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, TypeVar

from tocsin.core.draw import draw_u64
from tocsin.core.errors import TocsinError
from tocsin.core.ids import entropy_from

Result = TypeVar("Result")

_BEGIN_NS = 1_000_000_000_000  # not 0, which means "has not happened" in every record
_EPOCH_S = 946_684_800.0  # 2000-01-01 UTC: nobody takes it for the time of a run
_COLLECT_EVERY = 50_000


@dataclass(slots=True)
class VirtualClock:
    """Implements `core.clock.Clock`; its wall clock starts in the year 2000."""

    ns: int = _BEGIN_NS

    def now_ns(self) -> int:
        """Nanoseconds; 1,000 seconds at the beginning."""
        return self.ns

    def wall_s(self) -> float:
        """Seconds since the epoch, as far from now as can be seen at a glance."""
        return _EPOCH_S + (self.ns - _BEGIN_NS) / 1e9

    def sleep(self, seconds: float) -> None:
        """Let time pass at once."""
        self.ns += max(0, round(seconds * 1e9))


class _Jump(selectors.DefaultSelector):
    """In place of waiting for a timer, it is time for it; signals are heard all the same."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self._clock = clock
        self._jumps = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise TocsinError(
                "simulation: everybody waits for somebody else and no timer is set, expected one; "
                "this is a mistake of the simulated system"
            )
        # A timer that is due in less than a nanosecond must not be waited for in vain.
        self._clock.ns += max(1, round(timeout * 1e9))
        self._jumps += 1
        if self._jumps % _COLLECT_EVERY == 0:
            gc.collect()
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on a virtual clock; it has no threads."""

    def __init__(self, clock: VirtualClock) -> None:
        """Begin at the clock's time."""
        super().__init__(_Jump(clock))
        self._virtual = clock

    def time(self) -> float:
        """Seconds of the virtual clock."""
        return self._virtual.ns / 1e9

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., Result], *args: Any
    ) -> "asyncio.Future[Result]":
        """Make the call now: a thread would come back at a time of its own."""
        done: asyncio.Future[Result] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - raised where it is awaited
            done.set_exception(error)
        return done


def run_virtually(
    main: Coroutine[Any, Any, Result], clock: VirtualClock, *, seed: int = 0
) -> Result:
    """Run a coroutine to its end in virtual time.

    Args:
        clock: moved on as the program goes.
        seed: of the ids that are made meanwhile (`core.ids`).

    Raises:
        TocsinError: everybody waits for somebody else.
        Exception: whatever the coroutine raised.
    """
    made = 0

    def entropy() -> bytes:
        nonlocal made
        made += 1
        return b"".join(draw_u64(seed, "id", made, part).to_bytes(8, "little") for part in (0, 1))

    collects = gc.isenabled()
    gc.collect()
    # A finaliser that the collector calls would come at another place each time.
    gc.disable()
    gc.freeze()
    try:
        with entropy_from(entropy), asyncio.Runner(loop_factory=lambda: VirtualLoop(clock)) as it:
            return it.run(main)
    finally:
        gc.unfreeze()
        if collects:
            gc.enable()
