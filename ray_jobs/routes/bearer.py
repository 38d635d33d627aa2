"""The bearer token in front of everything that changes how the model is served."""

import hmac

from fastapi import Request
from fastapi.responses import JSONResponse

from tocsin.ray_jobs.bodies import error_body


def unauthorised(request: Request, token: str) -> JSONResponse | None:
    """The refusal of a request without the right token, None for one that has it.

    Args:
        token: what is expected; empty: nobody is admitted.
    """
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    right = hmac.compare_digest(given.strip().encode(), token.encode())
    if token and scheme.lower() == "bearer" and right:
        return None
    message = "authorization: expected the bearer token that `tocsin serve` was given"
    return JSONResponse(
        error_body(message, "authentication_error"),
        status_code=401,
        headers={"www-authenticate": "Bearer"},
    )
