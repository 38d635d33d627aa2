"""`tocsin reproduce`: from a failure id to a test that fails as recorded, in one command."""

import os
import time
from pathlib import Path
from typing import Annotated

import typer

from tocsin.ray_jobs.commands.edge import one_line

FailureId = Annotated[str, typer.Argument(help="failure id, latest, or latest:<operator>")]
Folder = Annotated[
    list[Path] | None,
    typer.Option(help="where to look: node folder, journal, chaos run or snapshot"),
]


@one_line
def reproduce(
    failure_id: FailureId = "latest",
    out: Annotated[Path | None, typer.Option(help="folder to write")] = None,
    folder: Folder = None,
    run: Annotated[bool, typer.Option("--run", help="run it; 0 if it fails as recorded")] = False,
    model: Annotated[
        bool, typer.Option("--model", help="also write a replay of the request on the engine")
    ] = False,
    no_shrink: Annotated[bool, typer.Option("--no-shrink", help="leave the call as it is")] = False,
) -> None:
    """Write a test that fails as a recorded failure did: no model, no GPU, shrunk."""
    import torch

    from tocsin.checker.reproduce import run as run_test
    from tocsin.checker.reproduce import write
    from tocsin.checker.reproduction.archive import find
    from tocsin.ray_jobs.model_replay import write_replay
    from tocsin.ray_jobs.places import spans_folder
    from tocsin.ray_jobs.tracing.reproduction import tell_reproduction

    torch.set_num_threads(1)
    found = find(failure_id, folder)
    made = write(found, out=out, smaller=not no_shrink)
    typer.echo(f"tocsin: failure {made.failure_id}: {made.check} on {made.operator}")
    typer.echo(f"  {made.diagnosis.words}")
    if made.shrunk is not None:
        small, whole = made.shrunk.after, made.shrunk.before
        typer.echo(f"  shrunk from {whole:,} to {small:,} tensor elements")
    if not made.fails:
        typer.echo(f"  the recorded call passes here (ratio {made.ratio:.4g}): not reproduced")
    typer.echo(f"  {os.path.relpath(made.test)}")
    if model:
        typer.echo(f"  {os.path.relpath(write_replay(found, made))}")
    if run:
        output: list[str] = []
        began_ns = time.monotonic_ns()
        result = run_test(made.test, output=output)
        typer.echo(f"tocsin: {_SAID[result]}")
        try:
            _count(result)
            tell_reproduction(spans_folder(), found.facts, result, began_ns)
        except OSError as error:  # the verdict is what was asked for
            typer.echo(f"tocsin: this run was not counted in the node's folder: {error}", err=True)
        if result != "reproduced":
            typer.echo("".join(output)[-4000:], err=True)
            raise typer.Exit(1)


_SAID = {
    "reproduced": "reproduced: it fails as recorded, with the same check",
    "not_reproduced": "not reproduced: what must fail passes, or the other way round",
    "error": "the reproduction could not be run; its output follows",
}


def _count(result: str) -> None:
    """One more run in this node's metrics."""
    from tocsin.core.metrics import REPRO_RUNS
    from tocsin.ray_jobs.metric_file import MetricFile
    from tocsin.ray_jobs.places import node_folder

    file = MetricFile(node_folder(), "repro")
    file.inc(REPRO_RUNS, (result,))
    file.close()
