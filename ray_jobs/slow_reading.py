"""A client that takes its time: a connection with little room, read a token at a time."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from urllib.parse import urlsplit

from tocsin.core.system import LoadRequest

_ROOM_BYTES = 4096
"""For what was sent and not read, so that the server's side feels the rest within seconds."""
_LIMIT_BYTES = 1 << 16

Head = Callable[[int, Mapping[str, str]], None]


async def slow_lines(
    url: str, request: LoadRequest, headers: Mapping[str, str], head: Head
) -> AsyncIterator[str]:
    """Lines of an answer's body, each token's after its time, the rest at once when that is over.

    HTTP/1.0 over http alone: the body then ends with the connection and is not cut into chunks.

    Args:
        url: of the server, without a path.
        head: told of status and headers, whose names are in lower case.

    Raises:
        OSError: the connection broke.
    """
    loop = asyncio.get_running_loop()
    where = urlsplit(url)
    connection = socket.socket()
    try:
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _ROOM_BYTES)
        await loop.sock_connect(connection, (where.hostname or "127.0.0.1", where.port or 80))
        await loop.sock_sendall(connection, _asked(request, headers, where.netloc))
        reading = _Reading(connection)
        status = await reading.line()
        found = {}
        while line := await reading.line():
            name, _, text = line.partition(":")
            found[name.strip().lower()] = text.strip()
        head(int(status.split()[1]), found)
        until_s = loop.time() + request.slow_for_s
        while (read := await reading.line_or_end()) is not None:
            yield read
            left_s = until_s - loop.time()
            if read and left_s > 0:
                await asyncio.sleep(min(request.reads_every_s, left_s))
    finally:
        connection.close()


def _asked(request: LoadRequest, headers: Mapping[str, str], host: str) -> bytes:
    body = json.dumps(request.body).encode()
    head = {
        **headers,
        "host": host,
        "content-type": "application/json",
        "content-length": str(len(body)),
    }
    lines = [f"POST {request.path} HTTP/1.0", *(f"{name}: {text}" for name, text in head.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body


class _Reading:
    """Takes no more from the kernel than the next line needs."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._held = b""

    async def line(self) -> str:
        """The next line.

        Raises:
            ConnectionError: there is none.
        """
        found = await self.line_or_end()
        if found is None:
            raise ConnectionError("the connection was closed before the answer")
        return found

    async def line_or_end(self) -> str | None:
        """The next line, None at the end of the connection."""
        loop = asyncio.get_running_loop()
        while b"\n" not in self._held:
            if len(self._held) > _LIMIT_BYTES:
                raise ConnectionError(f"a line of more than {_LIMIT_BYTES} bytes")
            more = await loop.sock_recv(self._connection, 1024)
            if not more:
                rest, self._held = self._held, b""
                return rest.decode() if rest else None
            self._held += more
        line, _, self._held = self._held.partition(b"\n")
        return line.removesuffix(b"\r").decode()
