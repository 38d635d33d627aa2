"""Faults on the network between a real HTTP client and a streaming service: tokens and alarms."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from tocsin.core.errors import SpecError
from tocsin.core.faulting import Order, OrderStatus
from tocsin.core.history import Event, EventKind, Outcome, RequestRecord
from tocsin.core.system import LoadRequest
from tocsin.ray_jobs.road_book import TIMEOUT, RoadBook

HOST = "127.0.0.1"
TOKENS = 12
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
_HEALTH = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 15\r\n\r\n"
    b'{"status":"ok"}'
)


def _sse(data: dict[str, Any] | str) -> bytes:
    text = data if isinstance(data, str) else json.dumps(data)
    line = f"data: {text}\n\n".encode()
    return f"{len(line):x}\r\n".encode() + line + b"\r\n"


def _token(index: int) -> dict[str, Any]:
    own = {"token": 100 + index, "index": index, "replica": "replica-0"}
    return {"choices": [{"delta": {"content": f" t{index}"}}], "tocsin": own}


_LAST = {
    "choices": [{"delta": {}, "finish_reason": "length"}],
    "usage": {"completion_tokens": TOKENS},
    "tocsin": {"attempts": ["replica-0"]},
}


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """HTTP/1.1 as far as the client and the watch need it: a health page, and streams."""
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = head.partition("content-length: ")[2].partition("\r\n")[0]
            await reader.readexactly(int(length or 0))
            if head.startswith("get /health"):
                writer.write(_HEALTH)
                await writer.drain()
                continue
            writer.write(_STREAM_HEAD)
            for index in range(TOKENS):
                writer.write(_sse(_token(index)))
                await writer.drain()
                await asyncio.sleep(0.03)
            writer.write(_sse(_LAST) + _sse("[DONE]") + b"0\r\n\r\n")
            await writer.drain()
    writer.close()


class Ground:
    """A service, a road to it, and whoever is told."""

    def __init__(self, port: int) -> None:
        self.events: list[Event] = []
        self.told: list[tuple[OrderStatus, str]] = []
        self.book = RoadBook(
            f"http://{HOST}:{port}",
            lambda status, about: self.told.append((status, about)),
            self.events.append,
        )
        self.client = httpx.AsyncClient(timeout=TIMEOUT)

    async def ask(self, name: str) -> RequestRecord:
        request = LoadRequest(name, "p", "/v1/chat/completions", {}, True, TOKENS)
        return [record async for record in self.book.send(self.client, request)][-1]

    async def load(self, stop: asyncio.Event) -> list[RequestRecord]:
        """One client after another until told to stop."""
        records: list[RequestRecord] = []
        while not stop.is_set():
            records.append(await self.ask(f"r{len(records)}"))
        return records

    def kinds(self) -> set[EventKind]:
        return {event.kind for event in self.events}


@pytest.fixture
async def ground() -> AsyncIterator[Ground]:
    service = await asyncio.start_server(_answer, HOST, 0)
    one = Ground(service.sockets[0].getsockname()[1])
    yield one
    await one.client.aclose()
    await asyncio.to_thread(one.book.close)
    service.close()


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("kind", "params", "alarms"),
    [
        ("net.delay", {"duration_s": 20.0}, {EventKind.ROAD_SLOW, EventKind.ROAD_LOST}),
        ("net.bandwidth", {"duration_s": 20.0, "rate_bytes_s": 300}, {EventKind.ROAD_LOST}),
        ("net.partition", {"duration_s": 20.0}, {EventKind.ROAD_LOST}),
        ("net.reset", {"share": 1.0}, {EventKind.CONNECTION_BROKEN}),
    ],
)
async def test_a_fault_on_the_road_is_seen_healed_and_costs_no_token(
    ground: Ground, kind: str, params: dict[str, Any], alarms: set[EventKind]
) -> None:
    """Under load: the alarm that means it comes, and every answer is whole, each token once."""
    stop = asyncio.Event()
    loads = [asyncio.create_task(ground.load(stop)) for _ in range(3)]
    await asyncio.sleep(0.1)
    order = Order("f@0", kind, 3, 0, 60.0, params)
    await asyncio.to_thread(ground.book.strike, order)
    status, about = ground.told[0]
    assert (status.state, about) == ("fired", "network"), status.error
    await _until(lambda: bool(ground.kinds() & alarms))
    await asyncio.to_thread(ground.book.disarm, "f@0")
    statuses = await asyncio.to_thread(ground.book.statuses)
    assert statuses["f@0"].state == "healed"
    stop.set()
    for records in await asyncio.gather(*loads):
        for record in records:
            assert record.outcome is Outcome.OK, record.error
            assert [chunk.index for chunk in record.chunks] == list(range(TOKENS))
            assert record.text == "".join(f" t{index}" for index in range(TOKENS))
    assert all(event.data["replica"] == "network" for event in ground.events)


async def test_a_road_that_nothing_is_done_to_alarms_nobody(ground: Ground) -> None:
    """And the answer is what it is without it."""
    record = await ground.ask("r0")
    assert record.outcome is Outcome.OK
    assert len(record.chunks) == TOKENS
    assert ground.events == []


def test_a_service_that_speaks_tls_is_refused() -> None:
    """A proxy would have to break its promise of who is at the other end."""
    with pytest.raises(SpecError, match="http://HOST:PORT"):
        RoadBook("https://llm.example:443", lambda status, about: None, lambda event: None)
