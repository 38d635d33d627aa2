"""The road between a load and a service: a TCP proxy of our own, which counts what it does.

Only who is given its address travels on it; it dies with the process that opened it. What is in
force ends by itself: who asked for it may be gone by then.
"""

import asyncio
import contextlib
import math
import socket
import struct
from collections.abc import Awaitable
from dataclasses import dataclass, field, replace

from tocsin.chaos.toxin import FROM, TO, Direction, Toxin
from tocsin.core.draw import draw_u64
from tocsin.core.errors import EnvironmentFault

HOST = "127.0.0.1"
_CHUNK_BYTES = 1 << 16
_CHUNKS_HELD = 16
_AHEAD_BYTES = 512
_ROOM_BYTES = 4096
"""Of each buffer on the way from the service: who does not read must be felt at the far end, within
seconds and not after some megabytes."""
_DIAL_S = 5.0
_ACTIVE_S = 1.0
"""A connection that has carried something this lately is in use."""
_LINGER_ZERO = struct.pack("ii", 1, 0)
"""SO_LINGER, on for 0 s: closing the socket sends RST (socket(7))."""


@dataclass(frozen=True, slots=True)
class Passage:
    """What a road has done so far.

    Attributes:
        connections: that were made; open: those that are there now.
        passed, late, held: bytes that got through; that were delayed; that were stopped for a time
            or for good. A connection that was kept waiting before it was made counts as one.
        pieces: that chunks were cut into, beyond one each.
        resets: connections that were reset, or whose far end was taken away.
    """

    connections: int = 0
    open: int = 0
    passed: int = 0
    late: int = 0
    held: int = 0
    pieces: int = 0
    resets: int = 0


@dataclass(slots=True, eq=False)
class _Connection:
    """One connection: the client's half and, once it was dialled, the service's."""

    number: int
    client: asyncio.StreamWriter
    service: asyncio.StreamWriter | None = None
    severed: bool = False
    active_s: float = 0.0

    def reset(self) -> None:
        """RST to both ends."""
        for writer in (self.client, self.service):
            _abort(writer)

    def sever(self) -> None:
        """The service's end is gone and the client hears nothing of it: half open."""
        self.severed = True
        _abort(self.service)


@dataclass(slots=True)
class Road:
    """The proxy itself; all methods belong to its event loop.

    Attributes:
        host, port: of the service; own_port: of the road, 0 while it is closed.
        reading: counts so far.
        toxin: in force; None: bytes pass as they come.
    """

    host: str
    port: int
    own_port: int = 0
    reading: Passage = field(default_factory=Passage)
    toxin: Toxin | None = None
    _server: asyncio.Server | None = None
    _open: set[_Connection] = field(default_factory=set)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _ends: asyncio.TimerHandle | None = None
    _free_s: dict[Direction, float] = field(default_factory=dict)

    async def open(self) -> int:
        """Begin to listen on loopback; returns the port.

        Raises:
            EnvironmentFault: it cannot.
        """
        try:
            self._server = await asyncio.start_server(self._accept, HOST, 0, limit=_AHEAD_BYTES)
        except OSError as error:
            raise EnvironmentFault(
                f"road: {HOST} cannot be listened on ({error.strerror}), expected a free port"
            ) from error
        self.own_port = int(self._server.sockets[0].getsockname()[1])
        return self.own_port

    async def close(self) -> None:
        """Let nobody in any more and break off who is there."""
        self.clear()
        if self._server is not None:
            self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def put(self, toxin: Toxin, duration_s: float) -> None:
        """Put a toxin in force; it ends by itself."""
        self.clear()
        self.toxin = toxin
        self._ends = asyncio.get_running_loop().call_later(duration_s, self.clear)
        self._tell()

    def clear(self) -> None:
        """Nothing is done to bytes any more; those that wait go on, the half-open are reset."""
        if self._ends is not None:
            self._ends.cancel()
            self._ends = None
        self.toxin = None
        self._free_s.clear()
        for connection in tuple(self._open):
            if connection.severed:
                connection.reset()
        self._tell()

    def cut(self, share: float, seed: int, *, half_open: bool = False) -> int:
        """Reset some of the connections that are in use, at least one; returns how many.

        Args:
            share: of them; the seed says which.
            half_open: the service's end is taken away, and while a toxin is in force the client
                hears nothing of it.
        """
        now_s = asyncio.get_running_loop().time()
        used = [
            one
            for one in self._open
            if one.service is not None
            and not one.client.is_closing()
            and not one.severed
            and now_s - one.active_s <= _ACTIVE_S
        ]
        used.sort(key=lambda one: draw_u64(seed, "cut", one.number))
        chosen = used[: math.ceil(share * len(used))]
        for one in chosen:
            one.sever() if half_open else one.reset()
        self._count(resets=len(chosen))
        return len(chosen)

    def _tell(self) -> None:
        """Wake all who wait for what is in force to change."""
        self._changed.set()
        self._changed = asyncio.Event()

    def _count(self, **more: int) -> None:
        self.reading = replace(
            self.reading, **{name: getattr(self.reading, name) + n for name, n in more.items()}
        )

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None:  # asyncio runs this as a task of its own
            return
        self._tasks.add(task)
        one = _Connection(self.reading.connections, writer)
        self._open.add(one)
        self._count(connections=1, open=1)
        try:
            await self._carry(one, reader)
        except (OSError, asyncio.IncompleteReadError):
            one.reset()
        except asyncio.CancelledError:
            # The road is taken away. asyncio asks a server's task for its exception, and complains
            # about one that was cancelled: it ends like any other.
            one.reset()
        finally:
            self._open.discard(one)
            self._tasks.discard(task)
            self._count(open=-1)
            for half in (one.client, one.service):
                if half is not None:
                    half.close()

    async def _carry(self, one: _Connection, reader: asyncio.StreamReader) -> None:
        """Both directions, until either end is closed."""
        await self._hold(TO, 0.0, 1)  # its first packet: a partition may meet nothing else
        answers, service = await asyncio.wait_for(self._dial(), _DIAL_S)
        one.service = service
        one.client.transport.set_write_buffer_limits(high=0)
        _little_room(one.client.get_extra_info("socket"), socket.SO_SNDBUF)
        lanes: list[Awaitable[None]] = [
            self._lane(one, TO, reader, service),
            self._lane(one, FROM, answers, one.client),
        ]
        tasks = [asyncio.ensure_future(lane) for lane in lanes]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            while one.severed and self.toxin is not None:
                await self._changed.wait()  # the client is told nothing until then
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to the service, whose answers wait there and not here."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        for family, kind, protocol, _, address in found:
            dialled = socket.socket(family, kind, protocol)
            try:
                dialled.setblocking(False)
                _little_room(dialled, socket.SO_RCVBUF)  # before the peer is told how much it is
                await loop.sock_connect(dialled, address)
                return await asyncio.open_connection(sock=dialled, limit=_AHEAD_BYTES)
            except OSError as error:
                dialled.close()
                refused = error
            except BaseException:  # cancelled: closed, and passed on
                dialled.close()
                raise
        raise refused  # by the last address: a name has one at least

    async def _lane(
        self,
        one: _Connection,
        direction: Direction,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """One direction: who reads does not wait for who writes, so that delays do not add up."""
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_CHUNKS_HELD)
        writing = asyncio.ensure_future(self._write(one, direction, waiting, writer))
        try:
            chunk, last_s = 0, 0.0
            while data := await reader.read(_CHUNK_BYTES):
                one.active_s = asyncio.get_running_loop().time()
                for due_s, piece in self._cut_up(one.number, direction, chunk, data):
                    last_s = max(last_s, due_s)
                    await waiting.put((last_s, piece))
                chunk += 1
            await waiting.put((last_s, b""))
            await writing
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)

    def _cut_up(
        self, number: int, direction: Direction, chunk: int, data: bytes
    ) -> list[tuple[float, bytes]]:
        """Pieces of a chunk, each with the time (of the loop) at which it may go on."""
        now_s = asyncio.get_running_loop().time()
        toxin = self.toxin
        if toxin is None or direction not in toxin.directions:
            return [(now_s, data)]
        pieces = list(toxin.pieces(data, number, direction, chunk))
        due_s = now_s + toxin.late_s(number, direction, chunk)
        dues = []
        for piece in pieces:
            if toxin.rate_bytes_s > 0:
                due_s = max(due_s, self._free_s.get(direction, 0.0))
                due_s += len(piece) / toxin.rate_bytes_s
                self._free_s[direction] = due_s
            dues.append((due_s, piece))
        self._count(pieces=len(pieces) - 1, late=len(data) if due_s > now_s else 0)
        return dues

    async def _write(
        self,
        one: _Connection,
        direction: Direction,
        waiting: "asyncio.Queue[tuple[float, bytes]]",
        writer: asyncio.StreamWriter,
    ) -> None:
        """Hand pieces on when they may go; an empty one is the end of the stream."""
        while True:
            due_s, piece = await waiting.get()
            await self._hold(direction, due_s, len(piece))
            if not piece:
                return
            writer.write(piece)
            await writer.drain()
            one.active_s = asyncio.get_running_loop().time()
            self._count(passed=len(piece))

    async def _hold(self, direction: Direction, due_s: float, size: int) -> None:
        """Wait until `size` bytes may go on, or nothing holds them any more."""
        counted = False
        while (toxin := self.toxin) is not None and direction in toxin.directions:
            left_s = due_s - asyncio.get_running_loop().time()
            if toxin.blocked and not counted:
                counted = True
                self._count(held=size)
            if not toxin.blocked and left_s <= 0:
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), None if toxin.blocked else left_s)


def _little_room(end: socket.socket, buffer: int) -> None:
    end.setsockopt(socket.SOL_SOCKET, buffer, _ROOM_BYTES)


def _abort(writer: asyncio.StreamWriter | None) -> None:
    if writer is None or writer.transport.is_closing():
        return
    with contextlib.suppress(OSError):
        peer = writer.get_extra_info("socket")
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
    writer.transport.abort()
