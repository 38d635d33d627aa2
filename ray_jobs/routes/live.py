"""`/live`: the page, its stream, its data and its two files."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, StreamingResponse
from ray import serve

from tocsin.core.errors import CapacityError
from tocsin.dashboards.live.figures import POINTS_MAX
from tocsin.dashboards.live.page import POLICY, asset, page
from tocsin.dashboards.live.state import LiveState
from tocsin.dashboards.live.words import chosen
from tocsin.ray_jobs.bodies import error_body

router = APIRouter()
Language = Annotated[str | None, Query()]
_SAFE = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
}
_FRESH = {"cache-control": "no-store"}
_RETRY_MS = 2000
"""How long a browser waits before it comes back."""


@router.get("/live", response_class=HTMLResponse)
async def live(request: Request, lang: Language = None) -> Response:
    """The live page; complete without JavaScript, kept up to date with it."""
    language = chosen(lang, request.headers.get("accept-language", ""))
    try:
        state = await _feed().state()
    except CapacityError as error:
        return _unavailable(error)
    headers = {**_SAFE, **_FRESH, "vary": "accept-language", "content-language": language}
    return HTMLResponse(await asyncio.to_thread(page, state, language), headers=headers)


@router.get("/live/events")
async def events(request: Request, lang: Language = None) -> Response:
    """Server-sent events, one a second: the parts that changed and the latest points."""
    language = chosen(lang, request.headers.get("accept-language", ""))
    frames = _feed().follow(language)
    try:
        first = await anext(frames)
    except CapacityError as error:
        return _unavailable(error)
    headers = {**_FRESH, "x-accel-buffering": "no"}
    return StreamingResponse(
        _stream(first, frames), media_type="text/event-stream", headers=headers
    )


@router.get("/live/state.json")
async def state_json(
    points: Annotated[int, Query(ge=0, le=POINTS_MAX)] = 300,
) -> Response:
    """The state as JSON, with at most so many points a line, spread over fifteen minutes."""
    try:
        state = await _feed().state()
    except CapacityError as error:
        return _unavailable(error)
    body = await asyncio.to_thread(_encoded, state, points)
    return Response(body, media_type="application/json", headers=_FRESH)


@router.get("/live/app.js")
async def app_js(request: Request) -> Response:
    """The page's script."""
    return _file(request, "live.js", "text/javascript; charset=utf-8")


@router.get("/live/style.css")
async def style_css(request: Request) -> Response:
    """The page's style."""
    return _file(request, "live.css", "text/css; charset=utf-8")


def _encoded(state: LiveState, points: int) -> bytes:
    """Half a megabyte at most; in a thread, because tokens pass through the event loop."""
    text = json.dumps(state.to_json(points), ensure_ascii=False, separators=(",", ":"))
    return text.encode()


async def _stream(first: str, frames: AsyncIterator[str]) -> AsyncIterator[bytes]:
    try:
        yield f"retry: {_RETRY_MS}\ndata: {first}\n\n".encode()
        async for frame in frames:
            yield f"data: {frame}\n\n".encode()
    finally:
        await frames.aclose()  # type: ignore[attr-defined]


def _file(request: Request, name: str, media_type: str) -> Response:
    """A file that a browser asks for again each time and seldom gets: its tag tells."""
    body = asset(name)
    tag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
    headers = {"cache-control": "no-cache", "etag": tag, "x-content-type-options": "nosniff"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=media_type, headers=headers)


def _unavailable(error: CapacityError) -> JSONResponse:
    body = error_body(str(error), "server_error", "unavailable")
    return JSONResponse(body, status_code=503, headers={"retry-after": "2"})


def _feed() -> Any:
    gateway: Any = serve.get_replica_context().servable_object
    return gateway.live
