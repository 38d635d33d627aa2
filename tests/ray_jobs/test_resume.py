"""A stream that outlives its replica: no token lost, none repeated, and it says what happened."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from ray.exceptions import ActorDiedError

from tocsin.core.errors import CapacityError, EnvironmentFault, SpecError
from tocsin.core.requests import Finish, FinishEvent, Request, TokenEvent
from tocsin.ray_jobs import resume
from tocsin.ray_jobs.resume import Resumer, Routed
from tocsin.ray_jobs.wire import step_event_to_wire

ANSWER = (11, 12, 13, 14, 15)
NO_MEMORY = "step 7 did not run: DefaultCPUAllocator: can't allocate memory"
Message = dict[str, Any] | Exception | None
"""What a worker says next: a message, an exception that breaks the stream, None for silence."""


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resume, "STALL_S", 0.05)
    monkeypatch.setattr(resume, "_LOOK_S", 0.01)


def hello(replica: str) -> dict[str, Any]:
    return {"type": "hello", "replica": replica}


def tokens(request: dict[str, Any], until: int = len(ANSWER)) -> list[Message]:
    """The rest of the answer, from what is delivered already."""
    start = len(request["delivered"])
    return [
        step_event_to_wire(TokenEvent(request["request_id"], i, ANSWER[i], 1.0, True))
        for i in range(start, until)
    ]


def ending(request: dict[str, Any]) -> dict[str, Any]:
    return step_event_to_wire(FinishEvent(request["request_id"], Finish.LENGTH, len(ANSWER)))


@dataclass
class FakeStream:
    """One call of a worker that follows a script."""

    script: list[Message]
    cancelled: bool = False

    def __aiter__(self) -> "FakeStream":
        return self

    async def __anext__(self) -> dict[str, Any]:
        if not self.script:
            raise StopAsyncIteration
        message = self.script.pop(0)
        if message is None:
            await asyncio.Event().wait()
        if isinstance(message, Exception):
            raise message
        assert message is not None
        return message

    def cancel(self) -> None:
        self.cancelled = True


@dataclass
class Fleet:
    """Workers in the order in which they are asked, and all that the resumer tells."""

    workers: list[Callable[[dict[str, Any]], list[Message]]]
    stale: set[str | None] = field(default_factory=set)
    asked: list[dict[str, Any]] = field(default_factory=list)
    streams: list[FakeStream] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    resumed: list[tuple[str, int]] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    def call(self, request: dict[str, Any]) -> FakeStream:
        worker = self.workers[min(len(self.asked), len(self.workers) - 1)]
        self.asked.append(request)
        self.streams.append(FakeStream(worker(request)))
        return self.streams[-1]

    async def note_broken(self, replica: str, why: str) -> None:
        self.broken.append(replica)

    async def note_resumed(self, request_id: str, count: int, why: str) -> None:
        self.resumed.append((request_id, count))
        self.reasons.append(why)

    def stream(self, deadline_s: float = 5.0) -> AsyncIterator[Routed]:
        resumer = Resumer(
            self.call, lambda replica: replica in self.stale, self.note_broken, self.note_resumed
        )
        return resumer.stream(Request("r1", (1, 2), len(ANSWER)), deadline_s)

    async def answer(self, deadline_s: float = 5.0) -> list[Routed]:
        return [routed async for routed in self.stream(deadline_s)]


def given_tokens(answer: list[Routed]) -> tuple[int, ...]:
    return tuple(r.event.token for r in answer if isinstance(r.event, TokenEvent))


def dies_after(count: int) -> Callable[[dict[str, Any]], list[Message]]:
    return lambda request: [hello("a"), *tokens(request, count), ActorDiedError()]


def freezes_after(count: int) -> Callable[[dict[str, Any]], list[Message]]:
    return lambda request: [hello("a"), *tokens(request, count), None]


def fails_after(count: int, replica: str = "a") -> Callable[[dict[str, Any]], list[Message]]:
    def worker(request: dict[str, Any]) -> list[Message]:
        error = FinishEvent(request["request_id"], Finish.ERROR, count, message=NO_MEMORY)
        return [hello(replica), *tokens(request, count), step_event_to_wire(error)]

    return worker


def healthy(request: dict[str, Any]) -> list[Message]:
    return [hello("b"), *tokens(request), ending(request)]


async def test_an_undisturbed_answer_has_one_attempt() -> None:
    """The plain way through."""
    fleet = Fleet([healthy])
    answer = await fleet.answer()
    assert given_tokens(answer) == ANSWER
    assert answer[-1].attempts == ("b",)
    assert fleet.resumed == []


@pytest.mark.parametrize("count", range(len(ANSWER) + 1))
async def test_a_replica_that_dies_loses_and_repeats_no_token(count: int) -> None:
    """At whichever token it dies, also before the first and after the last."""
    fleet = Fleet([dies_after(count), healthy])
    answer = await fleet.answer()
    assert given_tokens(answer) == ANSWER
    assert sum(isinstance(routed.event, FinishEvent) for routed in answer) == 1
    assert fleet.asked[1]["delivered"] == ANSWER[:count]
    assert fleet.broken == ["a"]
    assert fleet.resumed == [("r1", count)]
    assert answer[-1].attempts == ("a", "b")


@pytest.mark.parametrize("count", [0, 3])
async def test_a_frozen_replica_is_left_and_its_stream_is_cancelled(count: int) -> None:
    """Silence alone is not enough; with an old heartbeat it is."""
    fleet = Fleet([freezes_after(count), healthy], stale={"a"})
    answer = await fleet.answer()
    assert given_tokens(answer) == ANSWER
    assert fleet.streams[0].cancelled
    assert fleet.broken == []  # stalled is not dead: the board tells of it


async def test_a_slow_replica_with_a_fresh_heartbeat_is_waited_for() -> None:
    """A long prefill looks like silence; resubmitting it would only add load."""
    fleet = Fleet([freezes_after(1), healthy])
    with pytest.raises(EnvironmentFault, match="no replica finished the request"):
        await fleet.answer(deadline_s=0.3)
    assert len(fleet.asked) == 1


async def test_a_stream_that_ends_without_an_ending_goes_on_elsewhere() -> None:
    """A replica that shuts down cleanly ends its streams early."""
    fleet = Fleet([lambda request: [hello("a"), *tokens(request, 2)], healthy])
    assert given_tokens(await fleet.answer()) == ANSWER


async def test_what_was_delivered_is_never_delivered_again() -> None:
    """A replica that replays aloud is heard from its first new token on."""

    def replays(request: dict[str, Any]) -> list[Message]:
        everything = tokens({**request, "delivered": ()})
        return [hello("b"), *everything, ending(request)]

    fleet = Fleet([dies_after(3), replays])
    assert given_tokens(await fleet.answer()) == ANSWER


async def test_each_attempt_has_a_name_of_its_own_and_the_client_sees_none_of_them() -> None:
    """A thawed replica may still hold the first attempt under its name."""
    fleet = Fleet([dies_after(1), dies_after(2), healthy])
    answer = await fleet.answer()
    names = [request["request_id"] for request in fleet.asked]
    assert len(set(names)) == 3
    assert {routed.event.request_id for routed in answer} == {"r1"}


@pytest.mark.parametrize(("status", "kind"), [(400, SpecError), (429, CapacityError)])
async def test_a_rejection_reaches_the_caller_and_is_not_tried_elsewhere(
    status: int, kind: type[Exception]
) -> None:
    """A request that no replica can serve is not a broken replica."""

    def rejects(request: dict[str, Any]) -> list[Message]:
        return [hello("a"), {"type": "rejected", "status": status, "message": "no"}]

    fleet = Fleet([rejects])
    with pytest.raises(kind, match="no"):
        await fleet.answer()
    assert len(fleet.asked) == 1


async def test_closing_the_answer_cancels_the_stream() -> None:
    """The client went away: the replica must not go on for nobody."""
    fleet = Fleet([freezes_after(1)])
    events = fleet.stream()
    await anext(events)
    await events.aclose()  # type: ignore[attr-defined]
    assert fleet.streams[0].cancelled


async def test_replicas_that_keep_dying_end_in_one_clear_error() -> None:
    """Not in a loop without end."""
    fleet = Fleet([dies_after(0)])
    with pytest.raises(EnvironmentFault, match="ActorDiedError"):
        await fleet.answer(deadline_s=0.5)


@pytest.mark.parametrize("count", range(len(ANSWER) + 1))
async def test_an_engine_that_fails_loses_and_repeats_no_token(count: int) -> None:
    """At whichever token; the client sees neither the error nor a second ending."""
    fleet = Fleet([fails_after(count), healthy])
    answer = await fleet.answer()
    assert given_tokens(answer) == ANSWER
    assert [r.event.finish for r in answer if isinstance(r.event, FinishEvent)] == [Finish.LENGTH]
    assert fleet.asked[1]["delivered"] == ANSWER[:count]
    assert fleet.resumed == [("r1", count)]
    assert NO_MEMORY in fleet.reasons[0]
    assert fleet.broken == []  # it lives: nobody may take it for dead
    assert answer[-1].attempts == ("a", "b")


async def test_the_only_replica_is_asked_again_when_its_engine_fails() -> None:
    """What was short for a moment is there again in the next."""
    fleet = Fleet([fails_after(1), fails_after(3), lambda request: healthy(request)])
    assert given_tokens(await fleet.answer()) == ANSWER


async def test_a_request_that_every_engine_fails_at_ends_with_its_error() -> None:
    """Not in a loop, and not as if nobody had been there: it must not be sent again."""
    fleet = Fleet([fails_after(2, "a"), fails_after(2, "b")])
    answer = await fleet.answer()
    assert given_tokens(answer) == ANSWER[:2]
    assert answer[-1].event == FinishEvent("r1", Finish.ERROR, 2, message=NO_MEMORY)
    assert answer[-1].attempts == ("a", "b", "b")
    assert len(fleet.asked) == resume.FAILURES_MAX
    assert len(fleet.resumed) == resume.FAILURES_MAX - 1


async def test_replicas_that_end_early_do_not_count_as_failures() -> None:
    """One whose engine has stopped is asked until it is gone: the request is not to blame."""
    gone = [lambda request: [hello("a")]] * resume.FAILURES_MAX
    fleet = Fleet([fails_after(1), *gone, dies_after(2), healthy])
    assert given_tokens(await fleet.answer()) == ANSWER


async def test_a_failing_engine_does_not_outlast_the_deadline() -> None:
    """The bounds of a replica that dies hold for it as well."""
    fleet = Fleet([fails_after(0)])
    with pytest.raises(EnvironmentFault, match="can't allocate memory"):
        await fleet.answer(deadline_s=0.0)
    assert len(fleet.asked) == 1


@pytest.mark.parametrize("finish", [Finish.REFUSED, Finish.CANCELLED])
async def test_what_a_check_refused_is_not_tried_elsewhere(finish: Finish) -> None:
    """The refusal is the answer, with the id of its failure."""
    refusal = FinishEvent("r1", finish, 0, failure_id="F1", message="no page was clean")
    fleet = Fleet([lambda request: [hello("a"), step_event_to_wire(refusal)], healthy])
    answer = await fleet.answer()
    assert [routed.event for routed in answer] == [refusal]
    assert fleet.resumed == []
