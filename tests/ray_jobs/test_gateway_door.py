"""The gateway's own code without Serve: who is let in, who is answered again, who is dropped."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import Request, Response
from fastapi.responses import StreamingResponse

from tocsin.core.history import EventKind
from tocsin.core.requests import Finish, FinishEvent, TokenEvent
from tocsin.core.requests import Request as Generation
from tocsin.ray_jobs.admission import Admission
from tocsin.ray_jobs.backlog import PATIENCE_S, Backlogs, Waiting
from tocsin.ray_jobs.bodies import CompletionBody
from tocsin.ray_jobs.gateway import Gateway
from tocsin.ray_jobs.gateway_meter import GatewayMeter
from tocsin.ray_jobs.idempotency import REPLAYED, Replays
from tocsin.ray_jobs.options import ServeOptions
from tocsin.ray_jobs.prompting import Prompting
from tocsin.ray_jobs.resume import Routed
from tocsin.ray_jobs.tracing.gateway import GatewayTraces
from tocsin.ray_jobs.tracing.pipeline import Tracing
from tocsin.ray_jobs.tracing.settings import TraceSettings

PEER = ("127.0.0.1", 4001)


class Letters:
    """A tokenizer of one letter a token."""

    eos_token_id = 0

    def __call__(self, text: str, add_special_tokens: bool) -> dict[str, list[int]]:
        return {"input_ids": [1] * len(text)}

    def decode(self, tokens: Any, **options: Any) -> str:
        return "x" * len(tokens)


class Door:
    """A gateway whose replicas answer three tokens, each when they are let go."""

    def __init__(self, folder: Path) -> None:
        self.go = asyncio.Event()
        self.generated: list[str] = []
        self.told: list[EventKind] = []
        self.table: dict[tuple[str, int], Waiting] = {}
        # The class itself: what Serve makes of it can only live in one of its replicas.
        made: Any = object.__new__(Gateway.func_or_class.__mro__[1])
        made._options = ServeOptions(path="p", model="m", name="m", replicas=1, slots=1)
        made._prompting = Prompting(Letters(), 100, 64)
        made._meter = GatewayMeter(folder, "m")
        made._tracing = Tracing(folder, "gateway", settings=TraceSettings(enabled=False))
        made._traces = GatewayTraces(made._tracing)
        made._fleet = SimpleNamespace(expected=1, tell=self._tell)
        made._resumer = SimpleNamespace(stream=self._stream)
        made._token_s = 0.0
        made._replays = Replays(made._meter.replayed)
        made._backlogs = Backlogs(made._meter.backlog, lambda: self.table)
        made._admission = Admission(made._room)
        self.gateway = made

    async def _tell(self, kind: EventKind, request_id: str, data: Mapping[str, Any]) -> None:
        self.told.append(kind)

    async def _stream(
        self, generation: Generation, deadline_s: float, trace: Any = None
    ) -> AsyncIterator[Routed]:
        self.generated.append(generation.request_id)
        for index in range(3):
            yield Routed(TokenEvent(generation.request_id, index, 1, 0.5, True), ("a",))
            await self.go.wait()
        yield Routed(FinishEvent(generation.request_id, Finish.LENGTH, 3), ("a",))

    async def ask(self, *, stream: bool = True, **headers: str) -> Response:
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/completions",
            "query_string": b"",
            "server": ("127.0.0.1", 8000),
            "scheme": "http",
            "client": PEER,
            "headers": [
                (name.replace("_", "-").encode(), text.encode()) for name, text in headers.items()
            ],
        }
        body = CompletionBody(model="m", prompt=[1, 2], max_tokens=3, stream=stream)
        answer: Response = await self.gateway.complete(body, Request(scope))
        return answer


@pytest.fixture
def door(tmp_path: Path) -> Door:
    return Door(tmp_path)


async def body_of(response: Response) -> str:
    """All of it."""
    if not isinstance(response, StreamingResponse):
        return bytes(response.body).decode()
    return b"".join([bytes(one) async for one in response.body_iterator]).decode()


async def test_beyond_what_the_replicas_hold_requests_are_told_when_to_come_again(
    door: Door,
) -> None:
    """Four for one slot; a seat is free again when an answer has ended, or its client has left."""
    inside = [await door.ask() for _ in range(4)]
    away = await door.ask()
    assert away.status_code == 429
    assert int(away.headers["retry-after"]) >= 1
    assert "come again" in json.loads(await body_of(away))["error"]["message"]
    assert len(door.generated) == 4  # nobody was asked in vain
    assert isinstance(inside[0], StreamingResponse)
    leaving = aiter(inside[0].body_iterator)
    await anext(leaving)
    await leaving.aclose()  # type: ignore[attr-defined]
    door.go.set()
    assert "[DONE]" in await body_of(inside[1])
    assert door.gateway._admission.inside == 2
    assert "[DONE]" in await body_of(await door.ask())
    for one in inside[2:]:
        assert "[DONE]" in await body_of(one)
    assert door.gateway._admission.inside == 0


@pytest.mark.parametrize("stream", [True, False])
async def test_a_request_that_is_sent_again_under_its_key_is_generated_once(
    door: Door, stream: bool
) -> None:
    """In flight and afterwards; the copies say that they are copies."""
    door.go.set()
    together = [door.ask(stream=stream, idempotency_key="k") for _ in range(2)]
    answers = [*await asyncio.gather(*together), await door.ask(stream=stream, idempotency_key="k")]
    assert len({await body_of(one) for one in answers}) == 1
    assert len(door.generated) == 1
    assert [one.headers.get(REPLAYED) for one in answers] == [None, "true", "true"]
    await body_of(await door.ask(stream=stream, idempotency_key="other"))
    assert len(door.generated) == 2


async def test_a_client_that_does_not_read_is_dropped_and_its_seat_is_free(door: Door) -> None:
    """Its stream ends with the reason, the fleet's log says so, and another one is served."""
    response = await door.ask()
    assert isinstance(response, StreamingResponse)
    body = aiter(response.body_iterator)
    await anext(body)
    (reader,) = door.gateway._backlogs._by_id.values()
    assert reader.peer == PEER
    reader.backlog_bytes, reader.closed_s = 9000, PATIENCE_S
    rest = b"".join([bytes(one) async for one in body]).decode()
    error = json.loads(rest.removeprefix("data: "))["error"]
    assert error["code"] == "slow_client"
    assert "9000 bytes waited" in error["message"]
    assert door.told == [EventKind.CLIENT_DROPPED]
    assert door.gateway._admission.inside == 0
    door.go.set()
    assert "[DONE]" in await body_of(await door.ask())


async def test_who_sends_a_key_is_not_watched(door: Door) -> None:
    """Its answer is kept, whoever reads it and when."""
    response = await door.ask(idempotency_key="k")
    await asyncio.sleep(0)
    assert all(one.peer is None for one in door.gateway._backlogs._by_id.values())
    door.go.set()
    assert "[DONE]" in await body_of(response)
