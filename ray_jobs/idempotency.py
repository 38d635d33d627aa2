"""Idempotency-Key: a request that is sent again is executed once, and answered alike each time.

As in draft-ietf-httpapi-idempotency-key-header, with one difference: a copy that comes while the
first is under way is not turned away with 409, it gets the same answer, from its beginning. Keys
are remembered by one gateway, in memory.
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from fastapi import Response
from fastapi.responses import JSONResponse, StreamingResponse

from tocsin.core.clock import Clock, SystemClock
from tocsin.ray_jobs.bodies import error_body

KEY = "idempotency-key"
REPLAYED = "idempotent-replayed"
"""Header of an answer that was not executed for this request, as Stripe has it."""
KEY_CHARS_MAX = 255
KEPT_S = 600.0
"""After its end an answer is kept for so long."""
ENTRIES_MAX = 1024
BYTES_MAX = 32 << 20

Make = Callable[[], Awaitable[Response]]


@dataclass(slots=True)
class _Recording:
    """One execution, and what it has answered so far."""

    fingerprint: str
    head: "asyncio.Future[Response]"
    chunks: list[bytes] = field(default_factory=list)
    size: int = 0
    ended_ns: int = 0
    grown: asyncio.Event = field(default_factory=asyncio.Event)
    task: "asyncio.Task[None] | None" = None

    def add(self, chunk: bytes) -> None:
        self.chunks.append(chunk)
        self.size += len(chunk)
        self._wake()

    def end(self, now_ns: int) -> None:
        self.ended_ns = now_ns
        self._wake()

    def _wake(self) -> None:
        self.grown.set()
        self.grown = asyncio.Event()

    async def follow(self) -> AsyncIterator[bytes]:
        """All of the body, as it comes."""
        place = 0
        while True:
            grown = self.grown
            while place < len(self.chunks):
                place += 1
                yield self.chunks[place - 1]
            if self.ended_ns:
                return
            await grown.wait()


@dataclass(slots=True)
class Replays:
    """Answers by key, of whom sent it and where to; bounded in number, bytes and time.

    A request with a key is executed to its end although its client leaves: that client has said
    that it will ask again. Only answers with status 200 are kept; what was refused may be tried
    again under the same key.

    Args:
        replayed: told of each answer that was given again.
    """

    replayed: Callable[[], None] = lambda: None
    clock: Clock = field(default_factory=SystemClock)
    _kept: "OrderedDict[tuple[str, ...], _Recording]" = field(default_factory=OrderedDict)

    async def answer(
        self, headers: Mapping[str, str], path: str, body: bytes, make: Make
    ) -> Response:
        """The answer to a request: `make`'s, or the one that its key has already.

        Args:
            headers: of the request, names in lower case.
            body: what is asked; another one under the same key is a mistake of the client.
        """
        key = headers.get(KEY)
        if key is None:
            return await make()
        if not 0 < len(key) <= KEY_CHARS_MAX:
            return _refusal(
                400,
                f"Idempotency-Key: found {len(key)} characters, expected 1 to {KEY_CHARS_MAX}",
            )
        name = (path, headers.get("authorization", ""), key)
        fingerprint = hashlib.sha256(body).hexdigest()
        self._forget()
        known = self._kept.get(name)
        if known is not None and known.fingerprint != fingerprint:
            return _refusal(
                422,
                "Idempotency-Key: found another body than that of the first request with this "
                "key; send the same one, or another key",
            )
        recording = known or self._begin(name, fingerprint, make)
        first = await asyncio.shield(recording.head)
        if known is not None:
            self.replayed()
        return _copy(first, recording, again=known is not None)

    def _begin(self, name: tuple[str, ...], fingerprint: str, make: Make) -> _Recording:
        head: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        recording = _Recording(fingerprint, head)
        self._kept[name] = recording
        recording.task = asyncio.ensure_future(self._execute(name, recording, make))
        return recording

    async def _execute(self, name: tuple[str, ...], recording: _Recording, make: Make) -> None:
        """Make the answer and record it; what is not an answer is not kept."""
        whole = False
        try:
            response = await make()
            recording.head.set_result(response)
            if isinstance(response, StreamingResponse):
                async for chunk in response.body_iterator:
                    recording.add(chunk.encode() if isinstance(chunk, str) else bytes(chunk))
            else:
                recording.add(bytes(response.body))
            whole = response.status_code == 200
        except Exception as error:
            if recording.head.done():
                raise
            recording.head.set_exception(error)
        finally:
            recording.head.cancel()
            recording.end(self.clock.now_ns())
            if not whole or not _is_whole(recording):
                self._kept.pop(name, None)

    def _forget(self) -> None:
        """What is too old goes, then what has ended first, until there is room."""
        since_ns = self.clock.now_ns() - int(KEPT_S * 1e9)
        ended = [(one.ended_ns, name) for name, one in self._kept.items() if one.ended_ns]
        size = sum(one.size for one in self._kept.values())
        for ended_ns, name in sorted(ended):
            if ended_ns >= since_ns and len(self._kept) < ENTRIES_MAX and size < BYTES_MAX:
                break
            size -= self._kept.pop(name).size


def _is_whole(recording: _Recording) -> bool:
    """A stream that ends with an error has status 200, and is no answer all the same."""
    last = recording.chunks[-1] if recording.chunks else b""
    return not last.startswith(b'data: {"error"')


def _copy(first: Response, recording: _Recording, *, again: bool) -> Response:
    """The recorded answer for one more client."""
    copy = StreamingResponse(recording.follow(), status_code=first.status_code)
    copy.raw_headers = list(first.raw_headers)
    if again:
        copy.headers[REPLAYED] = "true"
    return copy


def _refusal(status: int, message: str) -> Response:
    return JSONResponse(error_body(message, "invalid_request_error"), status_code=status)
