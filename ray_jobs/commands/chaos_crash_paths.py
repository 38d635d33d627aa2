"""`tocsin chaos crash-paths`: seven ways to die in the middle of a fault; none leaves it armed."""

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer


def crash_paths(
    ttl: Annotated[float, typer.Option(min=0.2, help="lease of the fault, seconds")] = 2.0,
    patience: Annotated[
        float, typer.Option(min=1.0, help="seconds for whatever is waited for")
    ] = 60.0,
    keep: Annotated[
        Path | None, typer.Option(help="folder for what the runs leave; default: nothing is kept")
    ] = None,
) -> None:
    """Kill controller and worker, let probes and actions raise, cut the heal log at every byte.

    A real engine in a process of its own suffers one flipped weight bit, with checks off, each
    time. Exit code: 0 nothing is left armed; 5 something is; 3 a path on which no fault was in
    force when the crash came, which shows nothing.
    """
    from rich.console import Console
    from rich.table import Table

    from tocsin.ray_jobs.crash.paths import Terms, Walker, left_armed, worst_exit

    with ExitStack() as stack:
        folder = keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        walked = []
        for one in Walker(folder, Terms(ttl, patience)).walk():
            typer.echo(f"{one.path}: {one.left or 'nothing is armed'}")
            walked.append(one)
    table = Table(box=None)
    for name in ("crash path", "in force", "left armed", "gone after", "what the run told"):
        table.add_column(name, no_wrap=name != "what the run told")
    for one in walked:
        gone = "" if one.gone_after_s is None else f"{one.gone_after_s:.1f} s"
        left = "[bold red]yes[/]" if one.left else "no"
        table.add_row(one.path, "yes" if one.in_force else "[red]NO[/]", left, gone, one.told)
    Console().print(table)
    typer.echo(f"{len(left_armed(walked))} of {len(walked)} crash paths leave a fault armed")
    raise typer.Exit(worst_exit(walked))
