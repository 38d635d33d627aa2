"""`/docs/…`: the documents as text, so that runbook links lead somewhere without a wiki."""

from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from tocsin.ray_jobs.bodies import error_body

FOLDER = Path(__file__).resolve().parents[2] / "docs"
"""Of a checkout; an installed package has none."""

router = APIRouter()


@router.get("/docs/{name:path}")
def document(name: str) -> Response:
    """One document; a name is looked up among those that exist, so no path leads out."""
    known = {path.relative_to(FOLDER).as_posix(): path for path in FOLDER.rglob("*.md")}
    if name in known:
        return PlainTextResponse(known[name].read_text(encoding="utf-8"))
    message = (
        f"docs: there is no document {name[:80]!r} here; runbooks are /docs/runbooks/<alert>.md, "
        "and only a checkout has them"
    )
    return JSONResponse(error_body(message, "not_found_error"), status_code=404)
