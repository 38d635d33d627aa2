"""Requests that are refused before a handler sees them, in the shape of every other error."""

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from ray import serve
from starlette.exceptions import HTTPException

from tocsin.core.errors import SpecError
from tocsin.ray_jobs.bodies import error_body, validation_message


def install(app: FastAPI) -> None:
    """Have an application refuse in these words."""
    app.exception_handler(RequestValidationError)(_refuse_body)
    app.exception_handler(HTTPException)(_refuse)
    app.exception_handler(SpecError)(_refuse_text)


async def _refuse_body(request: Request, error: RequestValidationError) -> JSONResponse:
    """A body that is not understood: 400, as OpenAI has it, and what was wrong."""
    gateway: Any = serve.get_replica_context().servable_object
    gateway.count_rejected()
    message = validation_message(error.errors())
    return JSONResponse(error_body(message, "invalid_request_error"), status_code=400)


async def _refuse_text(request: Request, error: SpecError) -> JSONResponse:
    """A prompt that cannot be read: 400, with the line that says why."""
    gateway: Any = serve.get_replica_context().servable_object
    gateway.count_rejected()
    return JSONResponse(error_body(str(error), "invalid_request_error"), status_code=400)


async def _refuse(request: Request, error: HTTPException) -> JSONResponse:
    """An unknown path or method, in the shape of every other error."""
    message = f"{request.method} {request.url.path}: {error.detail}; see GET /openapi.json"
    body = error_body(message, "invalid_request_error")
    return JSONResponse(body, status_code=error.status_code, headers=error.headers)
