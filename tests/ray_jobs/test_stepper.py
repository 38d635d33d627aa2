"""A replica whose engine has stopped says so to those that it serves, and takes nobody else."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from tocsin.core.requests import EngineEvent, Finish, FinishEvent, Request, TokenEvent
from tocsin.ray_jobs import worker
from tocsin.ray_jobs.resume import Resumer, Routed
from tocsin.ray_jobs.stepper import Stepper
from tocsin.ray_jobs.wire import request_from_wire, step_event_to_wire
from tocsin.ray_jobs.worker import Worker

ANSWER = (11, 12, 13, 14)
NO_MEMORY = "DefaultCPUAllocator: can't allocate memory"


class Engine:
    """One request at a time, one token a step; it can be held, and fail at a token."""

    def __init__(self, fails_at: int = -1) -> None:
        self.fails_at = fails_at
        self.steps: list[int] = []
        self._request: Request | None = None

    @property
    def has_work(self) -> bool:
        return self._request is not None

    def submit(self, request: Request) -> None:
        self._request = request

    def cancel(self, name: str) -> None:
        self._request = None

    def stats(self) -> SimpleNamespace:
        return SimpleNamespace(step=len(self.steps))

    def step(self) -> tuple[EngineEvent, ...]:
        request = self._request
        if request is None:
            return ()
        index = len(request.delivered) + len(self.steps)
        self.steps.append(index)
        if index == self.fails_at:
            raise MemoryError(NO_MEMORY)
        token = TokenEvent(request.request_id, index, ANSWER[index], 1.0, True)
        if index + 1 < len(ANSWER):
            return (token,)
        self._request = None
        return (token, FinishEvent(request.request_id, Finish.LENGTH, len(ANSWER)))


def stack_of(engine: Engine) -> Any:
    """The engine with nothing around it."""

    def nothing(*_: object) -> None:
        return

    armoury = SimpleNamespace(tick=nothing, expire=nothing)
    expiring = SimpleNamespace(expire=nothing)
    gate = SimpleNamespace(degrader=expiring)
    return SimpleNamespace(engine=engine, armoury=armoury, switchboard=expiring, gate=gate)


@contextmanager
def stepping(
    build: Callable[[], Any], died: Callable[[Exception], None] = lambda error: None
) -> Iterator[Stepper]:
    """A stepper that is stopped in the end."""
    made = Stepper(build, died)
    assert made.ready.wait(10.0)
    yield made
    made.stop()


async def heard(stepper: Stepper) -> list[EngineEvent]:
    """All that a new request hears."""
    events = stepper.generate(Request("r", (1, 2), len(ANSWER)))
    return [event async for event in events]


async def test_an_engine_that_stops_ends_its_requests_and_takes_no_other() -> None:
    """The open one is told why; a later one is not begun, where it waited for ever before."""
    errors: list[Exception] = []
    with stepping(lambda: stack_of(Engine(fails_at=2)), errors.append) as stepper:
        first = await asyncio.wait_for(heard(stepper), 10.0)
        assert [event.token for event in first if isinstance(event, TokenEvent)] == [11, 12]
        ending = first[-1]
        assert isinstance(ending, FinishEvent)
        assert ending.finish is Finish.ERROR
        assert NO_MEMORY in ending.message
        for _ in range(2):  # and it does not keep the name
            assert await asyncio.wait_for(heard(stepper), 10.0) == []
    assert [type(error) for error in errors] == [MemoryError]


def test_a_stack_that_is_not_built_is_no_engine_that_stopped() -> None:
    """Its constructor says so to Serve; nothing ends a process that has not begun to serve."""
    errors: list[Exception] = []

    def fail() -> Any:
        raise MemoryError(NO_MEMORY)

    with stepping(fail, errors.append) as stepper:
        assert isinstance(stepper.failed, MemoryError)
    assert errors == []


def test_a_replica_whose_engine_has_stopped_ends_its_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its last events leave first; the words say what it was."""
    said: list[str] = []
    monkeypatch.setattr(worker, "end_soon", said.append)
    made: Any = object.__new__(Worker.func_or_class)
    made.replica, made._outbox = "a", worker.Outbox("a")
    made._died(MemoryError(NO_MEMORY))
    assert made._outbox.filled.is_set()
    assert NO_MEMORY in said[0]


async def test_a_request_outlives_an_engine_that_stops_in_its_middle() -> None:
    """Every token once, although the router sends it to the dead one again before the other."""
    with (
        stepping(lambda: stack_of(Engine(fails_at=2))) as dead,
        stepping(lambda: stack_of(Engine())) as healthy,
    ):
        order = [("a", dead), ("a", dead), ("b", healthy)]  # it has the least to do
        resumed: list[str] = []

        async def note(request_id: str, tokens: int, why: str) -> None:
            resumed.append(f"{tokens}: {why}")

        async def nobody(replica: str, why: str) -> None:
            raise AssertionError(f"{replica} did not break: {why}")

        def call(data: dict[str, Any]) -> Messages:
            return Messages(*order.pop(0), data)

        resumer = Resumer(call, lambda replica: False, nobody, note)
        request = Request("r", (1, 2), len(ANSWER))
        answer = [one async for one in resumer.stream(request, 10.0)]
    assert tokens_of(answer) == [*enumerate(ANSWER)]
    assert answer[-1].event == FinishEvent("r", Finish.LENGTH, len(ANSWER))
    assert answer[-1].attempts == ("a", "a", "b")
    assert NO_MEMORY in resumed[0]
    assert resumed[1] == "2: the stream ended without an ending"


def tokens_of(answer: list[Routed]) -> list[tuple[int, int]]:
    """Index and token of each that the client got."""
    events = [one.event for one in answer]
    return [(event.index, event.token) for event in events if isinstance(event, TokenEvent)]


class Messages:
    """What a worker sends, without Ray between; implements `resume.Stream`."""

    def __init__(self, replica: str, stepper: Stepper, data: dict[str, Any]) -> None:
        self._events: AsyncGenerator[EngineEvent, None] = stepper.generate(request_from_wire(data))
        self._hello: list[dict[str, Any]] = [{"type": "hello", "replica": replica}]

    def __aiter__(self) -> "Messages":
        return self

    async def __anext__(self) -> dict[str, Any]:
        return self._hello.pop() if self._hello else step_event_to_wire(await anext(self._events))

    def cancel(self) -> None:
        return
