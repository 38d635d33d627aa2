"""A running application as its users see it, and the system behind it."""

import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import httpx

from tocsin.core.history import Event, EventKind, RequestRecord
from tocsin.core.system import LoadRequest, ReplicaInfo
from tocsin.ray_jobs.client import send
from tocsin.ray_jobs.system import RaySystem

TOKEN = "the switchboard's token"
CHAT = "/v1/chat/completions"
LONG = 160


@dataclass
class Serving:
    """The running application as its users see it, and the system behind it."""

    url: str
    model: str
    system: RaySystem

    def body(self, **changes: Any) -> dict[str, Any]:
        return {
            "model": self.model,
            "messages": [{"role": "user", "content": "Ring the bell"}],
            "max_tokens": LONG,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            **changes,
        }

    async def stream(self, **changes: Any) -> AsyncIterator[RequestRecord]:
        """The growing record of one streamed chat."""
        body = self.body(**changes)
        name = f"test-{time.monotonic_ns()}"
        request = LoadRequest(name, "p", CHAT, body, bool(body["stream"]), int(body["max_tokens"]))
        async with httpx.AsyncClient(timeout=60.0) as client:
            records = send(client, self.url, request)
            try:
                async for record in records:
                    yield record
            finally:
                await records.aclose()  # type: ignore[attr-defined]

    async def answer(self, **changes: Any) -> RequestRecord:
        """The whole record of one streamed chat."""
        return [record async for record in self.stream(**changes)][-1]

    def alive(self) -> list[ReplicaInfo]:
        return [replica for replica in self.system.replicas() if replica.alive]

    def events(self, kind: EventKind, since: int = 0) -> list[Event]:
        return [event for event in self.system.events(since)[1] if event.kind is kind]

    def now(self) -> int:
        """Number of the next event."""
        return self.system.events(0)[0]

    def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        return httpx.post(f"{self.url}{path}", json=body, headers=headers, timeout=60.0)

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"{self.url}{path}", timeout=60.0)


def wait_until(condition: Callable[[], bool], what: str, within_s: float = 60.0) -> None:
    """Poll: what is waited for happens in other processes, whose clock nobody can turn."""
    until_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < until_s, f"{what}: not within {within_s:g} s"
        time.sleep(0.05)
