"""Who does not read is seen in the kernel's table, dropped after a while, and nobody else is."""

import asyncio
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from tocsin.core.clock import ManualClock
from tocsin.core.history import Outcome, RequestRecord
from tocsin.core.system import LoadRequest
from tocsin.ray_jobs import backlog
from tocsin.ray_jobs.answers import DONE, sse, sse_error
from tocsin.ray_jobs.backlog import BYTES_MAX, PATIENCE_S, Backlogs, Peer, Waiting, connections
from tocsin.ray_jobs.client import send

ONE: Peer = ("127.0.0.1", 4001)
OTHER: Peer = ("127.0.0.1", 4002)


class Table:
    """The kernel's table as a test sets it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.found: dict[Peer, Waiting] = {}
        self.told: list[int] = []
        self.backlogs = Backlogs(self.told.append, lambda: self.found, self.clock)

    def pass_s(self, seconds: float) -> None:
        """Look four times a second."""
        for _ in range(round(seconds * 4)):
            self.clock.sleep(0.25)
            self.backlogs.look()


def test_a_closed_window_for_long_is_stuck_and_an_open_one_never() -> None:
    """A far client has bytes on their way all the time, and reads."""
    table = Table()
    with table.backlogs.reading(ONE) as slow, table.backlogs.reading(OTHER) as far:
        table.found = {ONE: Waiting(900, closed=True), OTHER: Waiting(9000, closed=False)}
        table.pass_s(PATIENCE_S - 0.25)
        assert not slow.stuck
        table.pass_s(1.0)
        assert slow.stuck
        assert "900 bytes waited" in slow.why
        assert (far.stuck, far.backlog_bytes) == (False, 0)
    assert table.told[0] == 900


def test_who_takes_everything_now_and_then_is_not_dropped() -> None:
    """Patience begins anew; a window that only opens for a moment does not renew it."""
    table = Table()
    with table.backlogs.reading(ONE) as reader:
        for _ in range(3):
            table.found = {ONE: Waiting(900, closed=True)}
            table.pass_s(PATIENCE_S - 1)
            table.found = {}
            table.pass_s(0.25)
            assert reader.closed_s == 0.0
        for _ in range(2):
            table.found = {ONE: Waiting(900, closed=True)}
            table.pass_s(PATIENCE_S - 1)
            table.found = {ONE: Waiting(900, closed=False)}
            table.pass_s(0.25)
        assert reader.stuck


def test_too_many_bytes_are_too_many_at_once() -> None:
    """The buffer is bounded whatever the time."""
    table = Table()
    with table.backlogs.reading(ONE) as reader:
        table.found = {ONE: Waiting(BYTES_MAX + 1, closed=True)}
        table.pass_s(0.25)
        assert reader.stuck


def test_the_gauge_tells_all_clients_together_and_falls_when_they_are_gone() -> None:
    """A client that nobody knows the address of is never looked for."""
    table = Table()
    reading = table.backlogs.reading
    with reading(ONE), reading(OTHER), reading(None) as unknown:
        table.found = {ONE: Waiting(7, closed=True), OTHER: Waiting(5, closed=True)}
        table.pass_s(0.5)
        assert not unknown.stuck
    table.pass_s(0.25)
    assert table.told == [12, 0]


def test_the_kernels_table_is_read_as_proc_5_has_it(tmp_path: Path) -> None:
    """IPv4, IPv6 and an IPv4 client of an IPv6 socket; listeners and idle connections are left."""
    head = "sl local rem st tx:rx tr:when retr uid timeout inode\n"
    lines = [
        "0: 0100007F:1F40 00000000:0000 0A 00000080:00000000 00:00000000 0 0 0 1",
        "1: 0100007F:1F40 0100007F:8061 01 00000000:00000000 00:00000000 0 0 0 1",
        "2: 0100007F:1F40 0200007F:8062 01 00000384:00000000 04:00000014 0 0 0 1",
        "3: 0100007F:1F40 0300007F:8063 01 00000100:00000000 01:00000014 0 0 0 1",
    ]
    (tmp_path / "tcp").write_text(head + "\n".join(lines) + "\n")
    mapped = "0000000000000000FFFF0000" + "0400007F"
    loop6 = "00000000000000000000000001000000"
    six = [
        f"0: {mapped}:1F40 {mapped}:8064 01 00000001:00000000 04:00000014 0 0 0 1",
        f"1: {loop6}:1F40 {loop6}:8065 01 00000002:00000000 04:00000014 0 0 0 1",
    ]
    (tmp_path / "tcp6").write_text(head + "\n".join(six) + "\n")
    found = connections([tmp_path / "tcp", tmp_path / "tcp6", tmp_path / "none"])
    assert found == {
        ("127.0.0.2", 0x8062): Waiting(900, closed=True),
        ("127.0.0.3", 0x8063): Waiting(256, closed=False),
        ("127.0.0.4", 0x8064): Waiting(1, closed=True),
        ("::1", 0x8065): Waiting(2, closed=True),
    }


def _token(index: int) -> bytes:
    own = {"index": index, "token": index, "degraded": [], "replica": "a", "pad": "x" * 2000}
    choice = {"index": 0, "finish_reason": None, "delta": {"content": "t"}}
    return sse({"choices": [choice], "tocsin": own})


class Server:
    """Streams tokens as fast as the socket takes them, watched as the gateway's streams are."""

    def __init__(self) -> None:
        self.backlogs = Backlogs(lambda waiting: None)
        self.dropped: list[Peer] = []
        self.tokens = 80
        self.tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "Server":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.url = f"http://{host}:{port}"
        self._watching = asyncio.ensure_future(self.backlogs.watch_for_ever())
        return self

    async def __aexit__(self, *error: object) -> None:
        self._watching.cancel()
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
        peer = writer.get_extra_info("peername")
        with self.backlogs.reading(peer) as client:
            for index in range(self.tokens):
                writer.write(_token(index))
                await asyncio.sleep(0.01)
                if client.stuck:
                    self.dropped.append(peer)
                    writer.write(sse_error(client.why, backlog.SLOW_CLIENT, None))
                    break
            else:
                last = {"index": 0, "finish_reason": "length", "delta": {}}
                usage = {"completion_tokens": self.tokens}
                writer.write(sse({"choices": [last], "usage": usage, "tocsin": {}}) + DONE)
        writer.close()


def _asked(name: str) -> LoadRequest:
    return LoadRequest(name, "p", "/v1/chat/completions", {"x": 1}, True, 80)


async def test_on_real_sockets_only_the_client_that_does_not_read_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It finds the error when it reads in the end; its neighbour has the whole answer."""
    monkeypatch.setattr(backlog, "PATIENCE_S", 0.4)
    async with Server() as server, httpx.AsyncClient(timeout=30.0) as client:

        async def last(request: LoadRequest) -> RequestRecord:
            return [one async for one in send(client, server.url, request)][-1]

        slow = replace(_asked("slow"), reads_every_s=0.5, slow_for_s=1.5)
        dropped, whole = await asyncio.gather(last(slow), last(_asked("quick")))
    assert len(server.dropped) == 1
    assert dropped.outcome is Outcome.FAIL
    assert "was not read" in dropped.error
    assert 0 < len(dropped.chunks) < server.tokens
    assert whole.outcome is Outcome.OK
    assert len(whole.chunks) == server.tokens
