"""A road on an event loop of its own, for whoever is not on one: open it, say what it does."""

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

from tocsin.chaos.road import HOST, Passage, Road
from tocsin.chaos.toxin import Toxin
from tocsin.core.errors import EnvironmentFault

Answer = TypeVar("Answer")

_ANSWER_S = 10.0


class RoadThread:
    """Carries a load's connections to a service; safe to use from several threads.

    Attributes:
        service: `host:port` of the service.
        port: of the road, on loopback.
    """

    def __init__(self, host: str, port: int) -> None:
        """Open a road to a service.

        Raises:
            EnvironmentFault: no port of this machine can be listened on.
        """
        self.service = f"{host}:{port}"
        self._road = Road(host, port)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="road", daemon=True)
        self._thread.start()
        try:
            opened = asyncio.run_coroutine_threadsafe(self._road.open(), self._loop)
            self.port = opened.result(_ANSWER_S)
        except BaseException:
            self._end()
            raise

    @property
    def address(self) -> str:
        """Base URL of the service by this road; without TLS, which is bound to a name."""
        return f"http://{HOST}:{self.port}"

    def close(self) -> None:
        """Break off what is left and end; once more does nothing."""
        if self._loop.is_closed():
            return
        closed = asyncio.run_coroutine_threadsafe(self._road.close(), self._loop)
        closed.result(_ANSWER_S)
        self._end()

    def put(self, toxin: Toxin, duration_s: float) -> None:
        """Put a toxin in force; it ends by itself."""
        self._ask(lambda: self._road.put(toxin, duration_s))

    def clear(self) -> None:
        """End what is in force."""
        self._ask(self._road.clear)

    def is_clear(self) -> bool:
        """Whether nothing is in force."""
        return self._ask(lambda: self._road.toxin is None)

    def cut(self, share: float, seed: int, *, half_open: bool = False) -> int:
        """Reset a share of the connections in use; returns how many."""
        return self._ask(lambda: self._road.cut(share, seed, half_open=half_open))

    def reading(self) -> Passage:
        """What the road has done so far."""
        return self._ask(lambda: self._road.reading)

    def _ask(self, function: Callable[[], Answer]) -> Answer:
        """What a function returns on the road's loop.

        Raises:
            EnvironmentFault: the road is closed.
        """
        if self._loop.is_closed():
            raise EnvironmentFault(
                f"road: the road to {self.service} is closed, expected an open one; the run is over"
            )

        async def call() -> Answer:
            return function()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(_ANSWER_S)

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_ANSWER_S)
        self._loop.close()
