"""The relay's HTTP side: `POST /alerts/<receiver>` for Alertmanager, and `GET /healthz`."""

import hmac
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from pydantic import ValidationError

from tocsin.core.errors import CapacityError
from tocsin.dashboards.relay.notification import Notification
from tocsin.dashboards.relay.secret import read_secret
from tocsin.dashboards.relay.service import Relay

_BODY_BYTES_MAX = 4 << 20


def relay_app(relay: Relay) -> FastAPI:
    """The application over one relay; it starts and stops the relay with itself.

    Answers: 202 the notification is on disk · 400 it is not understood · 401 no right token ·
    404 no such receiver · 413 too long · 503 send it again.
    """

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        relay.start()
        yield
        await relay.stop()

    app = FastAPI(title="Tocsin alert relay", docs_url=None, redoc_url=None, lifespan=life)

    @app.post("/alerts/{receiver}")
    async def alerts(receiver: str, request: Request) -> Response:
        if not _admitted(relay, request):
            headers = {"www-authenticate": "Bearer"}
            return _refused(401, "authorization: expected the relay's bearer token", headers)
        if receiver not in relay.couriers:
            known = ", ".join(sorted(relay.couriers))
            return _refused(404, f"receiver {receiver!r} is not known, expected one of {known}")
        body = await request.body()
        if len(body) > _BODY_BYTES_MAX:
            return _refused(413, f"body: {len(body)} bytes, expected at most {_BODY_BYTES_MAX}")
        try:
            notification = Notification.model_validate_json(body)
        except ValidationError as error:
            return _refused(400, f"body: {first_problem(error)}")
        try:
            letter = relay.accept(receiver, notification)
        except CapacityError as error:
            return _refused(503, str(error))
        return JSONResponse({"id": letter.id}, status_code=202)

    @app.get("/healthz")
    async def healthz() -> Response:
        health = relay.health()
        return JSONResponse(health, status_code=200 if health["status"] == "ok" else 503)

    return app


def first_problem(error: ValidationError) -> str:
    """Where a body is wrong, and what was expected there."""
    one = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part) for part in one["loc"])
    return f"{place}: {one['msg']}" if place else one["msg"]


def _admitted(relay: Relay, request: Request) -> bool:
    path = relay.config.token_file
    if path is None:
        return True
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    wanted = read_secret(path, "token_file")
    return scheme.lower() == "bearer" and hmac.compare_digest(given.encode(), wanted.encode())


def _refused(status: int, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": message}, status_code=status, headers=headers)
