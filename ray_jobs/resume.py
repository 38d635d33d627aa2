"""A token stream that outlives its replica: broken, stalled or failed, it goes on elsewhere.

No token is lost, since every one that left is sent along as `delivered`; none is repeated, since
the index of a token decides whether it is new.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

from ray.exceptions import RayError

from tocsin.core.errors import CapacityError, EnvironmentFault, SpecError
from tocsin.core.requests import EngineEvent, Finish, FinishEvent, Request, TokenEvent
from tocsin.ray_jobs.attempts import named
from tocsin.ray_jobs.tracing.gateway import UNTRACED, Untraced
from tocsin.ray_jobs.wire import step_event_from_wire

STALL_S = 1.5
_LOOK_S = 0.1
ATTEMPTS_MAX = 12
FAILURES_MAX = 3
"""Failures of engines after which a request ends, with the error of the last one.

They are fewer than the attempts: it may be the request that engines fail at, and each that it is
sent to loses its step or its process. More than ten failures in a minute would page people, too.
"""


class Stream(Protocol):
    """One call of a worker: an asynchronous iterator that can be cancelled."""

    def __aiter__(self) -> AsyncIterator[dict[str, Any]]:
        """Itself."""
        ...

    async def __anext__(self) -> dict[str, Any]:
        """The next message of `Worker.generate`."""
        ...

    def cancel(self) -> None:
        """Give it up."""
        ...


Call = Callable[[dict[str, Any]], Stream]
"""Opens a stream for a request as it travels."""


@dataclass(frozen=True, slots=True)
class Routed:
    """An event and the replicas that worked on its request so far, the present one last."""

    event: EngineEvent
    attempts: tuple[str, ...]


class Resumer:
    """Opens streams at workers and carries requests from one to the next.

    Args:
        call: opens a stream for a request (as it travels).
        is_stale: whether a replica's heartbeat is old; with None: whether any living one's is.
        broken: told of a replica whose stream broke, with the reason.
        resumed: told of a request that goes on elsewhere: id, tokens held, reason.
    """

    def __init__(
        self,
        call: Call,
        is_stale: Callable[[str | None], bool],
        broken: Callable[[str, str], Awaitable[None]],
        resumed: Callable[[str, int, str], Awaitable[None]],
    ) -> None:
        """Nothing is open yet."""
        self._call = call
        self._is_stale = is_stale
        self._broken = broken
        self._resumed = resumed

    async def stream(
        self, request: Request, deadline_s: float, trace: Untraced = UNTRACED
    ) -> AsyncIterator[Routed]:
        """Tokens and the ending of one request; its trace hears of every attempt.

        An engine that fails breaks its attempt as a replica that dies does, `FAILURES_MAX` times;
        what a check refused is not tried elsewhere.

        Raises:
            SpecError, CapacityError: the worker did not take it.
            EnvironmentFault: nobody could serve it in time.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + deadline_s
        state = _Progress(request, trace)
        for attempt in range(ATTEMPTS_MAX):
            stream = self._call(asdict(state.request_of(attempt)))
            try:
                async for event in self._follow(stream, state, until_s):
                    yield Routed(event, tuple(state.attempts))
                    if isinstance(event, FinishEvent):
                        return
            except (_BrokenError, RayError) as error:
                await self._explain(state, error)
            finally:
                stream.cancel()
            if loop.time() >= until_s:
                break
            await self._resumed(request.request_id, len(state.delivered), state.why)
            await asyncio.sleep(min(0.05 * 2**attempt, 0.5))
        raise EnvironmentFault(
            f"gateway: no replica finished the request in {deadline_s:.0f} s "
            f"({len(state.attempts)} tried, last: {state.why}); look at the replicas' logs, then "
            "send it again"
        )

    async def _follow(
        self, stream: Stream, state: "_Progress", until_s: float
    ) -> AsyncIterator[EngineEvent]:
        """What is new of one stream, until its ending or until it breaks."""
        state.replica = None
        while True:
            message = await self._next(stream, state.replica, until_s)
            if message["type"] == "hello":
                state.enter(message["replica"])
                continue
            if message["type"] == "trace":
                state.trace.keep(message["why"])
                continue
            _raise_rejection(message)
            event = step_event_from_wire(message)
            if isinstance(event, FinishEvent) and state.survives(event):
                raise _BrokenError(f"the engine failed: {event.message}")
            if state.is_new(event):
                yield replace(event, request_id=state.request.request_id)

    async def _explain(self, state: "_Progress", error: Exception) -> None:
        broken = isinstance(error, _BrokenError)
        state.why = str(error) if broken else type(error).__name__
        state.trace.broken(state.why)
        if state.replica is not None and not broken:
            await self._broken(state.replica, state.why)

    async def _next(self, stream: Stream, replica: str | None, until_s: float) -> dict[str, Any]:
        """The next message, or the finding that none will come."""
        loop = asyncio.get_running_loop()
        asked_s = loop.time()
        task = asyncio.ensure_future(stream.__anext__())
        try:
            while True:
                done, _ = await asyncio.wait({task}, timeout=_LOOK_S)
                if done:
                    return _result(task)
                waited_s = loop.time() - asked_s
                if waited_s >= STALL_S and self._is_stale(replica):
                    raise _BrokenError(f"{replica or 'a replica'} was silent {waited_s:.1f} s")
                if loop.time() >= until_s:
                    raise _BrokenError("the deadline passed")
        finally:
            if not task.done():
                task.cancel()


@dataclass(slots=True)
class _Progress:
    """How far one request has come, over all its attempts."""

    request: Request
    trace: Untraced = UNTRACED
    delivered: list[int] = field(default_factory=list)
    attempts: list[str] = field(default_factory=list)
    replica: str | None = None
    why: str = ""
    failures: int = 0

    def __post_init__(self) -> None:
        self.delivered = list(self.request.delivered)

    def request_of(self, attempt: int) -> Request:
        """The request as the next worker gets it; a name of its own for each attempt."""
        name = named(self.request.request_id, attempt)
        delivered = tuple(self.delivered)
        traceparent = self.trace.attempt(attempt, len(delivered))
        return replace(self.request, request_id=name, delivered=delivered, traceparent=traceparent)

    def enter(self, replica: str) -> None:
        """A replica has begun to work on it."""
        self.replica = replica
        self.attempts.append(replica)
        self.trace.entered(replica)

    def survives(self, ending: FinishEvent) -> bool:
        """Whether it is the engine that failed, and another may be tried; the failure is noted."""
        if ending.finish is not Finish.ERROR:
            return False
        self.failures += 1
        return self.failures < FAILURES_MAX

    def is_new(self, event: EngineEvent) -> bool:
        """Whether the client does not have it yet; a token is noted as delivered."""
        if isinstance(event, TokenEvent):
            if event.index < len(self.delivered):
                return False
            self.delivered.append(event.token)
        return True


class _BrokenError(Exception):
    """The stream's engine failed, it ended without an ending, or its replica fell silent."""


def _result(task: "asyncio.Future[dict[str, Any]]") -> dict[str, Any]:
    try:
        return task.result()
    except StopAsyncIteration:
        raise _BrokenError("the stream ended without an ending") from None


def _raise_rejection(message: dict[str, Any]) -> None:
    if message["type"] == "rejected":
        kind = CapacityError if message["status"] == 429 else SpecError
        raise kind(message["message"])
