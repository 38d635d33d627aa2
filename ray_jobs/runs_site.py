"""The past runs of a store over HTTP, read-only: an index, their reports, two compared."""

from pathlib import Path
from typing import Annotated

from fastapi import FastAPI, Query
from fastapi.responses import FileResponse, HTMLResponse, Response
from starlette.middleware.trustedhost import TrustedHostMiddleware

from tocsin.chaos.compare.comparing import compare_runs
from tocsin.chaos.compare.index import render_index, render_refusal
from tocsin.chaos.compare.render import render_comparison
from tocsin.chaos.past_runs import REPORT, past_runs, run_of_id
from tocsin.core.errors import SpecError

HOSTS = ("127.0.0.1", "localhost", "[::1]")
"""Names under which it answers: a page of somebody else's cannot reach it through its own name."""

SERVED = {
    REPORT: "text/html; charset=utf-8",
    "verdict.json": "application/json",
    "journal.json": "application/json",
    "junit.xml": "application/xml",
}
"""The files of a run that are handed out; no other name is looked for on the disk."""

_HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}


def runs_site(store: Path) -> FastAPI:
    """The application.

    Args:
        store: folder of the runs; read anew for every page.
    """
    site = FastAPI(title="Tocsin past runs", docs_url=None, redoc_url=None, openapi_url=None)
    site.add_middleware(TrustedHostMiddleware, allowed_hosts=list(HOSTS))

    @site.get("/", response_class=HTMLResponse)
    def index(experiment: str = "") -> Response:
        runs = past_runs(store)
        experiments = sorted({run.experiment for run in runs})
        chosen = [run for run in runs if experiment in ("", run.experiment)]
        return _page(render_index(chosen, experiments, experiment, str(store)))

    @site.get("/runs/{experiment}/{name}/{file}")
    def artefact(experiment: str, name: str, file: str) -> Response:
        run = run_of_id(store, f"{experiment}/{name}")
        path = run.folder / file if run is not None and file in SERVED else None
        if path is None or path.is_symlink() or not path.is_file():
            words = f"{experiment}/{name} has no {file}, or is not in this store any more."
            return _page(render_refusal("Not here", words), 404)
        return FileResponse(path, media_type=SERVED[file], headers=_HEADERS)

    @site.get("/compare", response_class=HTMLResponse)
    def compare(run: Annotated[list[str] | None, Query()] = None) -> Response:
        asked = run or []
        if len(asked) != 2:
            words = f"{len(asked)} runs are ticked, expected two; go back and tick two."
            return _page(render_refusal("Tick two runs", words), 400)
        found = [run_of_id(store, one) for one in asked]
        missing = [name for name, one in zip(asked, found, strict=True) if one is None]
        if missing:
            words = f"{missing[0]} is not in this store; choose two from the list."
            return _page(render_refusal("Not here", words), 404)
        older, newer = sorted((one for one in found if one is not None), key=lambda one: one.name)
        try:
            page = render_comparison(compare_runs(older.folder, newer.folder), links=True)
        except SpecError as error:
            return _page(render_refusal("Cannot be compared", str(error)), 422)
        return _page(page)

    return site


def _page(text: str, status: int = 200) -> HTMLResponse:
    return HTMLResponse(text, status_code=status, headers=_HEADERS)
