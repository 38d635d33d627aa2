"""The log of a Ray job as lines, live, through every cut of the connection: each exactly once."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Protocol

_SILENT_S = 20.0
_PAUSE_S = 1.0
_CUTS_MOST = 60
"""In a row, without one letter between them: a minute at least."""


class LogSource(Protocol):
    """What is needed of `ray.job_submission.JobSubmissionClient`."""

    def tail_job_logs(self, job_id: str) -> AsyncIterator[str]:
        """The log from its beginning, in pieces, until the job has ended."""
        ...

    def get_job_logs(self, job_id: str) -> str:
        """The log so far."""
        ...


@dataclass(slots=True)
class LineCutter:
    """Makes lines of pieces; what a stream says again from the beginning is told apart by count.

    Attributes:
        taken: letters of the log that were taken.
    """

    emit: Callable[[str], None]
    taken: int = 0
    _position: int = 0
    _rest: str = ""

    def restart(self) -> None:
        """The next piece is the beginning of the log again."""
        self._position = 0

    def take(self, piece: str) -> None:
        """Take the part of a piece that is new."""
        fresh = piece[max(0, self.taken - self._position) :]
        self._position += len(piece)
        if not fresh:
            return
        self.taken += len(fresh)
        *lines, self._rest = (self._rest + fresh).split("\n")
        for line in lines:
            self.emit(line.removesuffix("\r"))

    def end(self) -> None:
        """There is no more: what has no line end is a line too."""
        if self._rest:
            self.emit(self._rest)
            self._rest = ""


async def follow(
    source: LogSource,
    job_id: str,
    cutter: LineCutter,
    ended: Callable[[], bool],
    *,
    silent_s: float = _SILENT_S,
) -> None:
    """Follow a job's log to its end.

    Args:
        ended: whether the job is over; may block for as long as a request takes.
        silent_s: a connection that said nothing for this long is opened anew: it may be dead.

    Raises:
        ConnectionError: the log cannot be read any more, and the job did not end.
    """
    cuts = 0
    while True:
        before = cutter.taken
        cutter.restart()
        problem = await _one_connection(source, job_id, cutter, silent_s)
        if await asyncio.to_thread(ended):
            break
        cuts = 0 if cutter.taken > before or not problem else cuts + 1
        if cuts >= _CUTS_MOST:
            raise ConnectionError(problem)
        await asyncio.sleep(_PAUSE_S)
    # The stream may have ended before the last lines were in it.
    cutter.restart()
    cutter.take(await asyncio.to_thread(source.get_job_logs, job_id))
    cutter.end()


async def _one_connection(
    source: LogSource, job_id: str, cutter: LineCutter, silent_s: float
) -> str:
    """Take what one connection says; why it broke, empty when it ended or fell silent."""
    pieces = source.tail_job_logs(job_id)
    try:
        while True:
            cutter.take(await asyncio.wait_for(anext(pieces), silent_s))
    except (StopAsyncIteration, TimeoutError):
        return ""
    except Exception as error:  # noqa: BLE001 - aiohttp, Ray and sockets each have their own
        return str(error) or type(error).__name__
    finally:
        close = getattr(pieces, "aclose", None)
        if close is not None:
            await close()
