"""A dashboard without Ray behind it: what a caller asks for, and a job that is only a log."""

import asyncio
import threading
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass
class FakeDashboard:
    """Answers as the script says; runs in a thread of its own.

    Attributes:
        log: of the job, whole.
        cuts: letters after which the nth connection to the log breaks.
        lives: how often the job is said to be running before it has ended.
        until_stopped: it runs until it is asked to stop.
        kept: letters of the log that the whole log still holds; None: all.
        unreachable: how many answers about the job fail in between.
    """

    version: Any = field(default_factory=lambda: {"version": "4", "ray_version": "2.60.0"})
    token: str = ""
    applications: dict[str, Any] = field(default_factory=dict)
    http_options: dict[str, Any] = field(default_factory=dict)
    jobs: list[dict[str, Any]] = field(default_factory=list)
    log: str = ""
    cuts: list[int] = field(default_factory=list)
    lives: int = 1
    until_stopped: bool = False
    end: dict[str, Any] = field(
        default_factory=lambda: {"status": "SUCCEEDED", "driver_exit_code": 0}
    )
    kept: int | None = None
    unreachable: int = 0
    refuses: str = ""
    submitted: list[dict[str, Any]] = field(default_factory=list)
    stops: int = 0
    connections: int = 0
    address: str = ""

    def __enter__(self) -> "FakeDashboard":
        self._up = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        assert self._up.wait(10)
        return self

    def __exit__(self, *what: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(10)

    async def _serve(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        app = web.Application(middlewares=[self._guard])
        app.router.add_get("/api/version", self._version)
        app.router.add_get("/api/serve/applications/", self._served)
        app.router.add_get("/api/jobs/", self._list)
        app.router.add_post("/api/jobs/", self._submit)
        app.router.add_get("/api/jobs/{job}", self._info)
        app.router.add_get("/api/jobs/{job}/logs", self._whole)
        app.router.add_get("/api/jobs/{job}/logs/tail", self._tail)
        app.router.add_post("/api/jobs/{job}/stop", self._stop)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.address = f"http://127.0.0.1:{runner.addresses[0][1]}"
        self._up.set()
        await self._over.wait()
        await runner.cleanup()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        given = request.headers.get("Authorization", "")
        if self.token and given != f"Bearer {self.token}":
            return web.Response(status=403 if given else 401, text="Unauthorized")
        answer: web.StreamResponse = await handler(request)
        return answer

    async def _version(self, request: web.Request) -> web.Response:
        if isinstance(self.version, str):
            return web.Response(text=self.version)
        return web.json_response(self.version)

    async def _served(self, request: web.Request) -> web.Response:
        return web.json_response(
            {"applications": self.applications, "http_options": self.http_options}
        )

    async def _list(self, request: web.Request) -> web.Response:
        return web.json_response(self.jobs)

    async def _submit(self, request: web.Request) -> web.Response:
        if self.refuses:
            return web.Response(status=500, text=self.refuses)
        self.submitted.append(await request.json())
        job = self.submitted[-1]["submission_id"]
        return web.json_response({"job_id": job, "submission_id": job})

    async def _info(self, request: web.Request) -> web.Response:
        if self.unreachable > 0:
            self.unreachable -= 1
            return web.Response(status=503, text="restarting")
        running = self.lives > 0 or (self.until_stopped and not self.stops)
        self.lives -= 1
        state = {"status": "RUNNING"} if running else self.end
        return web.json_response({"type": "SUBMISSION", "entrypoint": "x", **state})

    async def _whole(self, request: web.Request) -> web.Response:
        return web.json_response({"logs": self.log[: self.kept]})

    async def _tail(self, request: web.Request) -> web.StreamResponse:
        number, self.connections = self.connections, self.connections + 1
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        cut = self.cuts[number] if number < len(self.cuts) else None
        text = self.log[:cut]
        for start in range(0, len(text), 700):
            await socket.send_str(text[start : start + 700])
        if cut is not None:
            assert request.transport is not None
            request.transport.abort()
            return socket
        while self.until_stopped and not self.stops:
            await asyncio.sleep(0.02)
        await socket.close()
        return socket

    async def _stop(self, request: web.Request) -> web.Response:
        self.stops += 1
        return web.json_response({"stopped": True})
