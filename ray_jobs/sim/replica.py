"""One simulated replica: a coroutine that steps its core, freezes, dies, and feeds its streams."""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tocsin.core.clock import Clock
from tocsin.core.draw import draw_unit
from tocsin.core.errors import CapacityError, SpecError
from tocsin.core.requests import FinishEvent, Request
from tocsin.ray_jobs.sim.core import Core
from tocsin.ray_jobs.wire import request_from_wire, step_event_to_wire

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Pace:
    """How long things take in virtual time; each is drawn within its spread from the seed.

    Attributes:
        step_s: one engine step (SmolLM2, eight rows, one core).
        hop_s: one message between client, gateway and replica.
        break_s: from a replica's death to the error at its open streams (Ray: 1.85 s measured).
        restart_s: from a replica's death to its successor.
        spread: largest deviation, as a share.
    """

    step_s: float = 0.1
    hop_s: float = 0.001
    break_s: float = 1.85
    restart_s: float = 2.5
    spread: float = 0.25

    def drawn(self, mean_s: float, seed: int, *key: object) -> float:
        """A time around its mean."""
        return mean_s * (1.0 + self.spread * (2.0 * draw_unit(seed, "pace", *key) - 1.0))


_IDLE_S = 0.1
_GONE: Message = {"type": "gone"}


class Replica:
    """Steps while there is work; all that it is told reaches it between two steps."""

    def __init__(
        self,
        name: str,
        node: str,
        core: Core,
        clock: Clock,
        pace: Pace,
        seed: int,
        broke: Callable[[str, str], None],
    ) -> None:
        """Not running yet.

        Args:
            broke: told when a step raises: the process would end.
        """
        self.name, self.node = name, node
        self.core = core
        self.alive = True
        self._clock, self._pace, self._seed = clock, pace, seed
        self._broke = broke
        self._calls: list[Callable[[], None]] = []
        self._streams: dict[str, asyncio.Queue[Message]] = {}
        self._wake = asyncio.Event()
        self._thawed = asyncio.Event()
        self._thawed.set()
        self._heard_ns = clock.now_ns()
        self._stats = core.stats()
        self._turns = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def frozen(self) -> bool:
        """Whether it stands still."""
        return not self._thawed.is_set()

    @property
    def heard_ns(self) -> int:
        """Its last heartbeat: now, unless it stands still or is dead."""
        if self.alive and not self.frozen:
            self._heard_ns = self._clock.now_ns()
        return self._heard_ns

    @property
    def ongoing(self) -> int:
        """Streams that are open, what a router goes by."""
        return len(self._streams)

    def stats(self) -> dict[str, Any]:
        """Its last reading."""
        if self.alive and not self.frozen:
            self._stats = self.core.stats()
        return self._stats

    def start(self) -> None:
        """Begin to step; a loop must run."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    def call(self, function: Callable[[], None]) -> None:
        """Have it done before the next step."""
        self._calls.append(function)
        self._wake.set()

    def freeze(self) -> None:
        """Stand still, as under SIGSTOP."""
        self._heard_ns = self.heard_ns
        self._stats = self.core.stats()
        self._thawed.clear()

    def thaw(self) -> None:
        """Go on."""
        self._thawed.set()

    def die(self) -> None:
        """End at once; its streams break a little later."""
        if not self.alive:
            return
        self._heard_ns = self.heard_ns
        self._stats = self.core.stats()
        self.alive = False
        if self._task is not None:
            self._task.cancel()
        self.core.close()
        delay_s = self._pace.drawn(self._pace.break_s, self._seed, self.name, "break")
        asyncio.get_running_loop().call_later(delay_s, self._break_streams)

    def stop(self) -> None:
        """The run is over."""
        self.alive = False
        if self._task is not None:
            self._task.cancel()
        self.core.close()

    def open(self, data: Message) -> "asyncio.Queue[Message]":
        """Take a request as it travels; its messages come through the queue."""
        request = request_from_wire(data)
        queue: asyncio.Queue[Message] = asyncio.Queue()
        self._streams[request.request_id] = queue
        self.call(lambda: self._submit(request, queue))
        return queue

    def cancel(self, request_id: str) -> None:
        """Give a request up; nobody listens to it any more."""
        if self._streams.pop(request_id, None) is not None and self.alive:
            self.call(lambda: self.core.cancel(request_id))

    def _submit(self, request: Request, queue: "asyncio.Queue[Message]") -> None:
        if request.request_id not in self._streams:
            return  # given up before it was taken
        queue.put_nowait({"type": "hello", "replica": self.name})
        try:
            self.core.submit(request)
        except SpecError as error:
            queue.put_nowait({"type": "rejected", "status": 400, "message": str(error)})
        except CapacityError as error:
            queue.put_nowait({"type": "rejected", "status": 429, "message": str(error)})

    async def _run(self) -> None:
        try:
            while True:
                await self._thawed.wait()
                await self._turn()
        except Exception as error:  # noqa: BLE001 - as in a served replica: its process ends
            self._broke(self.name, f"the engine stopped: {type(error).__name__}: {error}")

    async def _turn(self) -> None:
        """What was asked for, then one step, or a short rest when there is nothing to do."""
        self._wake.clear()
        calls, self._calls = self._calls, []
        for call in calls:
            call()
        if not self.core.has_work:
            self.core.idle()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), _IDLE_S)
            return
        events = self.core.step()
        self._turns += 1
        await asyncio.sleep(self._pace.drawn(self._pace.step_s, self._seed, self.name, self._turns))
        await self._thawed.wait()  # what a frozen process has made leaves when it goes on
        for event in events:
            queue = self._streams.get(event.request_id)
            if queue is None:
                continue
            queue.put_nowait(step_event_to_wire(event))
            if isinstance(event, FinishEvent):
                del self._streams[event.request_id]

    def _break_streams(self) -> None:
        streams, self._streams = self._streams, {}
        for queue in streams.values():
            queue.put_nowait(_GONE)


def is_gone(message: Message) -> bool:
    """Whether a message says that its sender is dead."""
    return message is _GONE
