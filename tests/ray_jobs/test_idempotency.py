"""Idempotency-Key: one execution, one answer, whoever asks for it and when."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fastapi import Response
from fastapi.responses import JSONResponse, StreamingResponse

from tocsin.core.clock import ManualClock
from tocsin.ray_jobs import idempotency
from tocsin.ray_jobs.answers import sse_error
from tocsin.ray_jobs.idempotency import KEPT_S, KEY, REPLAYED, Replays

PATH = "/v1/chat/completions"


class Executions:
    """Makes streams of three chunks, each when it is let go; counts how many it made."""

    def __init__(self, *chunks: bytes) -> None:
        self.made = 0
        self.go = asyncio.Event()
        self.chunks = chunks or (b"one", b"two", b"three")

    async def stream(self) -> Response:
        self.made += 1
        return StreamingResponse(self._body(), headers={"x-of": str(self.made)})

    async def _body(self) -> AsyncIterator[bytes]:
        yield self.chunks[0]
        await self.go.wait()
        for chunk in self.chunks[1:]:
            yield chunk

    async def refusal(self) -> Response:
        self.made += 1
        return JSONResponse({"error": {}}, status_code=429, headers={"retry-after": "1"})


async def body_of(response: Response) -> bytes:
    """All of it."""
    assert isinstance(response, StreamingResponse)
    return b"".join([bytes(chunk) async for chunk in response.body_iterator])


def ask(replays: Replays, made: Any, key: str = "k", body: bytes = b"b", **more: str) -> Any:
    return replays.answer({KEY: key, **more}, PATH, body, made)


async def test_without_a_key_everything_is_executed() -> None:
    """And nothing is kept."""
    executions, replays = Executions(), Replays()
    for _ in range(2):
        await replays.answer({}, PATH, b"b", executions.stream)
    assert executions.made == 2
    assert not replays._kept


async def test_a_copy_in_flight_and_one_afterwards_get_the_one_answer() -> None:
    """From its beginning, with its headers; only the copies are marked."""
    told: list[int] = []
    executions, replays = Executions(), Replays(lambda: told.append(1))
    first = await ask(replays, executions.stream)
    second = await ask(replays, executions.stream)
    bodies = asyncio.gather(body_of(first), body_of(second))
    await asyncio.sleep(0)
    executions.go.set()
    assert await bodies == [b"onetwothree"] * 2
    third = await ask(replays, executions.stream)
    assert await body_of(third) == b"onetwothree"
    assert executions.made == 1
    marks = [one.headers.get(REPLAYED) for one in (first, second, third)]
    assert marks == [None, "true", "true"]
    assert third.headers["x-of"] == "1"
    assert len(told) == 2


async def test_two_that_come_at_the_same_moment_are_one_execution() -> None:
    """Neither waits for the other to have begun."""
    executions, replays = Executions(), Replays()
    executions.go.set()
    answers = await asyncio.gather(*(ask(replays, executions.stream) for _ in range(2)))
    assert executions.made == 1
    assert {await body_of(one) for one in answers} == {b"onetwothree"}


async def test_an_answer_is_finished_though_its_client_leaves() -> None:
    """Who sends a key will ask again: it finds the whole answer."""
    executions, replays = Executions(), Replays()
    first = await ask(replays, executions.stream)
    assert isinstance(first, StreamingResponse)
    body = aiter(first.body_iterator)
    assert await anext(body) == b"one"
    await body.aclose()  # type: ignore[attr-defined]
    executions.go.set()
    assert await body_of(await ask(replays, executions.stream)) == b"onetwothree"
    assert executions.made == 1


async def test_another_body_under_the_same_key_is_a_mistake() -> None:
    """422, and the first answer stays."""
    executions, replays = Executions(), Replays()
    await ask(replays, executions.stream)
    refused = await ask(replays, executions.stream, body=b"other")
    assert refused.status_code == 422
    assert "another body" in json.loads(bytes(refused.body))["error"]["message"]
    assert executions.made == 1


@pytest.mark.parametrize("key", ["", "k" * 256])
async def test_a_key_of_no_length_or_too_much_is_refused(key: str) -> None:
    """Memory is bounded, also against whoever makes up keys."""
    executions, replays = Executions(), Replays()
    assert (await ask(replays, executions.stream, key=key)).status_code == 400
    assert executions.made == 0


async def test_keys_of_different_people_have_nothing_to_do_with_each_other() -> None:
    """Nobody reads another one's answer by guessing a key."""
    executions, replays = Executions(), Replays()
    await ask(replays, executions.stream, authorization="Bearer a")
    await ask(replays, executions.stream, authorization="Bearer b")
    assert executions.made == 2


async def test_what_was_turned_away_or_failed_may_be_tried_again() -> None:
    """A 429, and a stream that ends with an error, are no answers."""
    executions, replays = Executions(b"one", sse_error("broke", "error", None)), Replays()
    for _ in range(2):
        assert (await ask(replays, executions.refusal)).status_code == 429
    executions.go.set()
    for _ in range(2):
        await body_of(await ask(replays, executions.stream, key="other"))
    assert executions.made == 4


async def test_an_execution_that_raises_raises_for_everybody_and_is_forgotten() -> None:
    """A bug must not become an answer that never comes."""

    async def broken() -> Response:
        raise RuntimeError("it broke")

    replays = Replays()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="it broke"):
            await ask(replays, broken)
    assert not replays._kept


async def test_answers_are_kept_for_a_while_and_never_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By time, by number and by bytes; what is under way is never forgotten."""
    clock = ManualClock()
    executions, replays = Executions(), Replays(clock=clock)
    running = await ask(replays, executions.stream, key="running")
    done = Executions()
    done.go.set()
    clock.sleep(1.0)
    await body_of(await ask(replays, done.stream, key="old"))
    clock.sleep(KEPT_S + 1)
    await body_of(await ask(replays, done.stream, key="new"))
    assert {name[-1] for name in replays._kept} == {"running", "new"}
    monkeypatch.setattr(idempotency, "ENTRIES_MAX", 2)
    await body_of(await ask(replays, done.stream, key="newer"))
    assert {name[-1] for name in replays._kept} == {"running", "newer"}
    monkeypatch.setattr(idempotency, "BYTES_MAX", 5)
    await body_of(await ask(replays, done.stream, key="newest"))
    assert {name[-1] for name in replays._kept} == {"running", "newest"}
    executions.go.set()
    assert await body_of(running) == b"onetwothree"
