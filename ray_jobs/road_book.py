"""The road of a run's own load: who travels on it, what is done to it, and who notices."""

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx

from tocsin.chaos.road_striker import NETWORK, RoadStriker
from tocsin.chaos.road_thread import RoadThread
from tocsin.core.clock import SystemClock
from tocsin.core.errors import SpecError
from tocsin.core.faulting import OrderStatus
from tocsin.core.history import Event, EventKind, RequestRecord
from tocsin.core.system import LoadRequest
from tocsin.ray_jobs.client import send
from tocsin.ray_jobs.reconnect import SILENT_S, reconnecting
from tocsin.ray_jobs.road_watch import RoadWatch
from tocsin.ray_jobs.strike_book import StrikeBook

TIMEOUT = httpx.Timeout(None, read=SILENT_S)
"""Of a client on a road: one that hears nothing any more asks again."""


class RoadBook(StrikeBook):
    """Opens a road to a service and strikes it; safe to use from several threads."""

    def __init__(
        self,
        url: str,
        tell_status: Callable[[OrderStatus, str], None],
        tell_event: Callable[[Event], None],
    ) -> None:
        """Open the road; nothing is done to it yet.

        Args:
            tell_status: hears every change of an order's state, and whom it is about.
            tell_event: hears what is noticed of the road.

        Raises:
            SpecError: the service speaks TLS, which a proxy cannot look through.
            EnvironmentFault: no port can be listened on.
        """
        where = urlsplit(url)
        if where.scheme != "http" or where.hostname is None:
            raise SpecError(
                f"road: the service is at {url}, expected http://HOST:PORT for faults on the "
                "network; aim the run at its plain address"
            )
        self._tell_event = tell_event
        self._road = RoadThread(where.hostname, where.port or 80)
        super().__init__(
            RoadStriker(SystemClock(), lambda status: tell_status(status, NETWORK), self._road)
        )
        self._watch = RoadWatch(url, self._road.address, self._noticed)

    def close(self) -> None:
        """Take the road away."""
        self._watch.close()
        self._road.close()

    def describe(self) -> dict[str, Any]:
        """For the manifest: the load does not reach the service directly."""
        return {"service": self._road.service, "by": self._road.address}

    def send(self, client: httpx.AsyncClient, request: LoadRequest) -> AsyncIterator[RequestRecord]:
        """Send a request by the road; a client whose connection breaks asks again."""
        return reconnecting(lambda: send(client, self._road.address, request), self._broken)

    def _broken(self, record: RequestRecord) -> None:
        data = {"error": record.error, "tokens": len(record.chunks)}
        self._noticed(EventKind.CONNECTION_BROKEN, data, record.request_id)

    def _noticed(self, kind: EventKind, data: Mapping[str, Any], request_id: str = "") -> None:
        now_ns = SystemClock().now_ns()
        about = {**data, "replica": NETWORK}
        self._tell_event(Event(kind, now_ns, NETWORK, request_id=request_id, data=about))
