"""One task reads for all who watch: once a second while anybody does, seldom otherwise."""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from ray.exceptions import RayError

from tocsin.core.errors import CapacityError
from tocsin.dashboards.live.page import sections
from tocsin.dashboards.live.state import LiveState
from tocsin.ray_jobs.live.collect import Collector
from tocsin.ray_jobs.live.reading import Source

WATCHED_S = 1.0
IDLE_S = 5.0
LINGER_S = 30.0
"""Somebody who reloads finds a fresh picture."""
CLIENTS_MAX = 32
BEHIND_MAX = 3
"""Frames that may wait for a client; one that is further behind is let go and comes back."""
_FRESH_S = 2.0

_LOG = logging.getLogger(__name__)

Frame = str | None
"""The data of one event; None ends a stream."""


@dataclass(slots=True, eq=False)
class _Client:
    language: str
    frames: asyncio.Queue[Frame] = field(default_factory=lambda: asyncio.Queue(BEHIND_MAX + 1))
    shown: dict[str, str] = field(default_factory=dict)
    gone: bool = False


class LiveFeed:
    """The latest state, and a stream of what changes for each who watches.

    Args:
        now_s: monotonic seconds.
    """

    def __init__(
        self,
        source: Source,
        collector: Collector,
        *,
        now_s: Callable[[], float],
    ) -> None:
        """Nothing is read before `run`."""
        self._source = source
        self._collector = collector
        self._now_s = now_s
        self._clients: set[_Client] = set()
        self._state: LiveState | None = None
        self._read_s = float("-inf")
        self._wanted_s = float("-inf")
        self._wake = asyncio.Event()
        self._busy = asyncio.Lock()
        self.dropped = self.failed = 0

    @property
    def watching(self) -> int:
        """How many streams are open."""
        return len(self._clients)

    async def run(self) -> None:
        """Read for ever; a reading that fails is logged, and the next one is tried."""
        while True:
            try:
                await self.tick()
            except Exception:  # noqa: BLE001 - a process edge: who watches must not wait in vain
                _LOG.exception("live: a reading could not be shown")
                self.failed += 1
            now_s = self._now_s()
            watched = self._clients or now_s - self._wanted_s < LINGER_S
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), WATCHED_S if watched else IDLE_S)

    async def tick(self) -> None:
        """One reading, and a frame to everybody."""
        async with self._busy:
            try:
                reading = await self._source.read(self._collector.wanted)
            except RayError:
                return  # no board for a moment: the page shows an old time, and says so
            # In threads, here and below: tokens pass through the event loop meanwhile.
            self._state = await asyncio.to_thread(self._collector.take, reading)
            self._read_s = self._now_s()
            await self._send(self._state)

    async def state(self) -> LiveState:
        """The latest state, read now if it is old."""
        first = self._now_s() - self._wanted_s > LINGER_S
        self._wanted_s = self._now_s()
        if self._state is None or self._now_s() - self._read_s > _FRESH_S:
            await self.tick()
        if first:
            self._wake.set()
        if self._state is None:
            raise CapacityError("live: nothing could be read from the board yet; try again soon")
        return self._state

    async def follow(self, language: str) -> AsyncIterator[str]:
        """Frames for one client until it leaves, or is let go because it does not keep up.

        Raises:
            CapacityError: too many watch already, or nothing can be read yet.
        """
        if len(self._clients) >= CLIENTS_MAX:
            raise CapacityError(
                f"live: {CLIENTS_MAX} streams are open, expected fewer; close a page or use "
                "/live/state.json"
            )
        state = await self.state()
        client = _Client(language)
        self._clients.add(client)
        try:
            yield _frame(state, await asyncio.to_thread(sections, state, language), client)
            while (frame := await client.frames.get()) is not None:
                yield frame
        finally:
            self._clients.discard(client)
            self._wanted_s = self._now_s()

    async def _send(self, state: LiveState) -> None:
        rendered: dict[str, dict[str, str]] = {}
        for client in tuple(self._clients):
            if client.frames.qsize() >= BEHIND_MAX:
                self._clients.discard(client)
                self.dropped += 1
                client.frames.put_nowait(None)
                continue
            if client.language not in rendered:
                rendered[client.language] = await asyncio.to_thread(
                    sections, state, client.language
                )
            client.frames.put_nowait(_frame(state, rendered[client.language], client))


def _frame(state: LiveState, parts: dict[str, str], client: _Client) -> str:
    """The parts that differ from what this client has, and the latest point of each line."""
    news = {name: html for name, html in parts.items() if client.shown.get(name) != html}
    client.shown = parts
    points = {
        figure.id: [[line.name, line.last] for line in figure.lines] for figure in state.figures
    }
    return json.dumps(
        {"wall_s": state.wall_s, "sections": news, "points": points},
        ensure_ascii=False,
        separators=(",", ":"),
    )
