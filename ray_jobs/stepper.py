"""The thread that steps a replica's engine, and the streams that its tokens go to."""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from dataclasses import asdict, replace
from typing import Any, TypeVar

from tocsin.core.errors import TocsinError
from tocsin.core.requests import EngineEvent, Finish, FinishEvent, Request
from tocsin.ray_jobs.attempts import free_name
from tocsin.ray_jobs.stack import Stack

_IDLE_S = 0.1

Answer = TypeVar("Answer")


class Stepper:
    """Steps while there is work; one queue a request carries its tokens to the event loop.

    Args:
        build: makes the stack; called on the stepping thread, which then owns it.
        died: called with the exception that ended the stepping: the process must not linger. Not
            called when there is no stack to step; `failed` says why.
        turned: called after each turn with what its step took; None: there was no work.
    """

    def __init__(
        self,
        build: Callable[[], Stack],
        died: Callable[[Exception], None],
        turned: Callable[[Stack, float | None], None] = lambda stack, took_s: None,
    ) -> None:
        """Start the thread; `ready` is set once the model is loaded."""
        self.ready = threading.Event()
        self.failed: Exception | None = None
        self._build = build
        self._died = died
        self._turned = turned
        self._stack: Stack | None = None
        self._streams: dict[str, tuple[asyncio.AbstractEventLoop, asyncio.Queue[EngineEvent]]] = {}
        self._held: dict[str, None] = {}  # names that the engine has not let go yet
        self._lock = threading.Lock()
        self._wake = threading.Condition()
        self._stopping = False
        self._calls: list[Callable[[Stack], None]] = []
        self._thread = threading.Thread(target=self._run, name="stepper", daemon=True)
        self._thread.start()

    @property
    def stack(self) -> Stack:
        """The wired parts.

        Raises:
            TocsinError: the model is not loaded (yet).
        """
        if self._stack is None:
            raise TocsinError("worker: the model is not loaded yet; wait until it is ready")
        return self._stack

    def call(self, function: Callable[[Stack], None]) -> None:
        """Have a function run on the stepping thread, before its next step."""
        with self._wake:
            self._calls.append(function)
            self._wake.notify()

    def ask(self, function: Callable[[Stack], Answer]) -> "Future[Answer]":
        """The same, for what it returns or raises; an error ends nothing but this."""
        answer: Future[Answer] = Future()

        def run(stack: Stack) -> None:
            if not answer.set_running_or_notify_cancel():
                return
            try:
                answer.set_result(function(stack))
            except Exception as error:  # noqa: BLE001 - handed to the one who asked
                answer.set_exception(error)

        self.call(run)
        return answer

    def open(self, request: Request) -> tuple[Request, AsyncGenerator[EngineEvent, None]]:
        """A request under the name that it has from now on, and its events: see `generate`.

        A name that the engine has not let go yet is not given again.
        """
        with self._lock:
            name = free_name(request.request_id, self._held.keys() | self._streams.keys())
            self._held[name] = None
        request = replace(request, request_id=name)
        return request, self._serve(request)

    def generate(self, request: Request) -> AsyncGenerator[EngineEvent, None]:
        """Serve one request; closing the iterator cancels it.

        Where nothing steps any more it ends without an ending: it was not begun.

        Raises:
            SpecError, CapacityError: it was not taken; by the iterator.
        """
        return self.open(request)[1]

    async def _serve(self, request: Request) -> AsyncGenerator[EngineEvent, None]:
        name = request.request_id
        queue: asyncio.Queue[EngineEvent] = asyncio.Queue()
        stack = self.stack
        with self._lock:
            if self.failed is not None:  # it is set before the streams are ended under this lock
                self._held.pop(name, None)
                return
            self._streams[name] = (asyncio.get_running_loop(), queue)
        ended = False
        try:
            try:
                stack.engine.submit(request)
            except BaseException:  # it does not hold the name
                with self._lock:
                    self._held.pop(name, None)
                raise
            self._notify()
            while not ended:
                event = await queue.get()
                ended = isinstance(event, FinishEvent)
                yield event
        finally:
            if not ended:  # before the name is free: the next who has it must not be meant
                stack.engine.cancel(name)
                self._notify()
            with self._lock:
                self._streams.pop(name, None)

    def stop(self) -> None:
        """End the thread after its step; open streams end with an error."""
        self._stopping = True
        self._notify()
        self._thread.join(timeout=10.0)

    def _notify(self) -> None:
        with self._wake:
            self._wake.notify()

    def _run(self) -> None:
        try:
            self._stack = stack = self._build()
            self.ready.set()
            while not self._stopping:
                self._turn(stack)
        except Exception as error:  # noqa: BLE001 - a process edge: told to the owner, who ends it
            self.failed = error
            self.ready.set()
            self._end_streams(f"worker: the engine stopped: {type(error).__name__}: {error}")
            if self._stack is not None:
                self._died(error)

    def _turn(self, stack: Stack) -> None:
        """What was asked for, then one step, or a short sleep when there is nothing to do."""
        with self._wake:
            calls, self._calls = self._calls, []
        for call in calls:
            call(stack)
        if not stack.engine.has_work:
            stack.armoury.expire()
            stack.switchboard.expire()
            stack.gate.degrader.expire()
            stack.engine.step()  # an idle step audits the pages
            self._turned(stack, None)
            with self._wake:
                if not self._calls and not stack.engine.has_work and not self._stopping:
                    self._wake.wait(_IDLE_S)
            return
        stack.armoury.tick(stack.engine.stats().step)
        began_ns = time.monotonic_ns()
        events = stack.engine.step()
        took_s = (time.monotonic_ns() - began_ns) / 1e9
        for event in events:
            self._deliver(event)
        self._turned(stack, took_s)

    def _deliver(self, event: EngineEvent) -> None:
        with self._lock:
            stream = self._streams.get(event.request_id)
            if isinstance(event, FinishEvent):
                self._held.pop(event.request_id, None)
        if stream is not None:
            loop, queue = stream
            loop.call_soon_threadsafe(queue.put_nowait, event)

    def _end_streams(self, message: str) -> None:
        with self._lock:
            streams = dict(self._streams)
        for request_id, (loop, queue) in streams.items():
            ending = FinishEvent(request_id, Finish.ERROR, 0, message=message)
            loop.call_soon_threadsafe(queue.put_nowait, ending)


def reading(stack: Stack) -> dict[str, Any]:
    """Numbers of a heartbeat, JSON-safe; may be called from any thread."""
    counters = stack.gate.counters
    return {
        "stats": asdict(stack.engine.stats()),
        "counters": counters.as_dict(),
        "breaker": {name: str(stack.breaker.state(name)) for name in stack.engine.config.backends},
        "switchboard": stack.switchboard.status(),
        "degradations": stack.gate.degrader.status(),
        "verified_tokens": counters.verified_tokens,
        "unverified_tokens": counters.unverified_tokens,
    }
