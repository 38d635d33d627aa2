"""What clients of running streams have not taken yet, as the kernel tells; who does not read goes.

A stream passes Serve's proxy on its way, which takes tokens faster than any client. That the client
does not read shows in the kernel's table of this host's connections alone: its window is closed.
"""

import asyncio
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tocsin.core.clock import Clock, SystemClock

SLOW_CLIENT = "slow_client"
"""Code of the error with which such a stream ends."""
PATIENCE_S = 5.0
"""For so long a client's window may be closed before it is dropped, unless all was taken between:
an answer is made at a few kilobytes a second, and a client that reads at all keeps up with it."""
BYTES_MAX = 256 * 1024
"""So much may wait for one client."""
_LOOK_S = 0.25
_TABLES = (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6"))
_ZERO_WINDOW = "04"
"""Of proc(5), tcp: the timer that asks a peer without room whether it has some again."""

Peer = tuple[str, int]


@dataclass(slots=True)
class Reader:
    """One client of a running stream.

    Attributes:
        backlog_bytes: sent and not acknowledged, while its window is closed; 0 while it is open.
        closed_s: how long its window was closed since all was taken last.
    """

    peer: Peer | None = None
    backlog_bytes: int = 0
    closed_s: float = 0.0

    @property
    def stuck(self) -> bool:
        """It does not read; it is to be dropped."""
        return self.closed_s >= PATIENCE_S or self.backlog_bytes > BYTES_MAX

    @property
    def why(self) -> str:
        """In words, for a client that does read in the end."""
        return (
            f"the stream was not read for {self.closed_s:.0f} s and {self.backlog_bytes} bytes "
            "waited: it was ended; read it as it comes, or ask without stream"
        )

    def look(self, waiting: "Waiting | None", passed_s: float) -> None:
        """Take in what the kernel says of its connection; None: nothing."""
        if waiting is None or not waiting.bytes_out:
            self.backlog_bytes, self.closed_s = 0, 0.0
        elif waiting.closed:
            self.backlog_bytes = waiting.bytes_out
            self.closed_s += passed_s
        else:
            self.backlog_bytes = 0


@dataclass(frozen=True, slots=True)
class Waiting:
    """The sending half of one connection: bytes not acknowledged, and whether the peer has room."""

    bytes_out: int
    closed: bool


@dataclass(slots=True)
class Backlogs:
    """Follows the clients of all running streams.

    Args:
        gauge: told of the bytes that wait for clients that do not read, of all together.
        read: the kernel's table by peer.
    """

    gauge: Callable[[int], None]
    read: Callable[[], dict[Peer, Waiting]] = field(default_factory=lambda: connections)
    clock: Clock = field(default_factory=SystemClock)
    _readers: set[int] = field(default_factory=set)
    _by_id: dict[int, Reader] = field(default_factory=dict)
    _last_ns: int = 0
    _told: int = 0

    @contextmanager
    def reading(self, peer: Sequence[str | int] | None) -> Iterator[Reader]:
        """A client reads a stream while the block lasts.

        Args:
            peer: address and port, as the server's socket has them; None: it is not known.
        """
        reader = Reader((str(peer[0]), int(peer[1])) if peer else None)
        self._by_id[id(reader)] = reader
        try:
            yield reader
        finally:
            del self._by_id[id(reader)]

    def look(self) -> None:
        """One look at the kernel's table, if anybody reads."""
        now_ns = self.clock.now_ns()
        passed_s = (now_ns - self._last_ns) / 1e9 if self._last_ns else 0.0
        self._last_ns = now_ns
        readers = [one for one in self._by_id.values() if one.peer is not None]
        found = self.read() if readers else {}
        for reader in readers:
            peer = reader.peer
            reader.look(found.get(peer) if peer else None, min(passed_s, 4 * _LOOK_S))
        total = sum(one.backlog_bytes for one in readers)
        if total != self._told:
            self._told = total
            self.gauge(total)

    async def watch_for_ever(self) -> None:
        """Look a few times a second."""
        while True:
            self.look()
            await asyncio.sleep(_LOOK_S)


def connections(tables: Sequence[Path] = _TABLES) -> dict[Peer, Waiting]:
    """This network namespace's connections with something to send, by peer (proc(5), tcp)."""
    found: dict[Peer, Waiting] = {}
    for table in tables:
        try:
            lines = table.read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue  # not a Linux host, or no such protocol: nobody is seen to be slow
        for line in lines:
            fields = line.split()
            bytes_out = int(fields[4].partition(":")[0], 16)
            if bytes_out and fields[3] != "0A":  # a listener's queue is of another kind
                peer = _peer(fields[2])
                found[peer] = Waiting(bytes_out, fields[5].partition(":")[0] == _ZERO_WINDOW)
    return found


def _peer(text: str) -> Peer:
    """`0100007F:8061`: the address as words of the host's byte order, and the port."""
    address, _, port = text.partition(":")
    words = [bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, len(address), 8)]
    raw = b"".join(words)
    if raw.startswith(bytes(10) + b"\xff\xff"):  # an IPv4 client of an IPv6 socket
        raw = raw[12:]
    family = socket.AF_INET if len(raw) == 4 else socket.AF_INET6
    return socket.inet_ntop(family, raw), int(port, 16)
