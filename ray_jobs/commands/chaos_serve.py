"""`tocsin chaos serve`: the past runs of a store in a browser, on this machine alone."""

from pathlib import Path
from typing import Annotated

import typer

from tocsin.core.errors import SpecError

HOST = "127.0.0.1"


def serve(
    store: Annotated[Path, typer.Option(help="folder of the runs")] = Path("store"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one")] = 8321,
) -> None:
    """Show past runs on 127.0.0.1: verdicts, reports, and any two compared; Ctrl-C ends it."""
    if not store.is_dir():
        raise SpecError(
            f"chaos serve: {store} is no folder, expected one with runs; make a run, or name it "
            "with --store"
        )
    import uvicorn

    from tocsin.ray_jobs.cluster import check_port, free_port
    from tocsin.ray_jobs.runs_site import runs_site

    port = port or free_port(HOST)
    check_port(HOST, port, command="chaos serve")
    typer.echo(f"tocsin: past runs of {store} at http://{HOST}:{port}")
    uvicorn.run(runs_site(store), host=HOST, port=port, log_level="warning")
