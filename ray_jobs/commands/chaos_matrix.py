"""`tocsin chaos matrix`: every fault alone, and which detector saw it how often."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tocsin.ray_jobs.commands.chaos_sim import TINY, SimModel

if TYPE_CHECKING:
    from tocsin.chaos.case import Case
    from tocsin.chaos.spec import Experiment

_FILE_WIDTH = 140
"""Of what goes to no terminal."""


def matrix(
    kinds: Annotated[
        str, typer.Argument(help="ids or patterns with commas between them: kv.*,act.nan")
    ] = "",
    occurrences: Annotated[
        int, typer.Option("--n", min=1, max=10_000, help="of each fault in simulation")
    ] = 10,
    on_ray: Annotated[
        int, typer.Option("--ray-n", min=0, max=50, help="of each fault in Ray; 0: leave Ray out")
    ] = 1,
    seed: Annotated[int, typer.Option(min=0)] = 7,
    recall: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="share that must be seen in time")
    ] = 0.99,
    jobs: Annotated[int, typer.Option(min=0, help="simulating processes; 0: this one")] = 2,
    fresh: Annotated[bool, typer.Option("--fresh", help="make again what was made")] = False,
    model: SimModel = TINY,
    store: Annotated[Path, typer.Option(help="folder of the runs")] = Path("store"),
) -> None:
    """Inject every fault alone, and print the fault × detector table.

    Faults run in simulation where they can, the others together in one run on Ray. What was done
    is kept, so that the same command goes on. Exit code: 0 all are caught; 1 a wrong answer got
    out, a fault stayed, or too few were seen; 3 an occurrence did not fire; 2 no detector that is
    meant to see a fault saw it at all; the lines below the table name it.
    """
    from rich.console import Console

    from tocsin.chaos.matrix.page import matrix_lines, matrix_table
    from tocsin.ray_jobs.sim.matrix import FILE, PAGE, Filler, Wanted

    patterns = tuple(one.strip() for one in kinds.split(",") if one.strip())
    wanted = Wanted(patterns, seed, occurrences, on_ray, model, recall, jobs, fresh)
    folder = store / "matrix" / f"{Path(model).name}-{seed}"
    filled = Filler(wanted, folder, lambda one: _served(one, store), typer.echo).fill()
    console = Console()
    if not console.is_terminal:
        console = Console(width=_FILE_WIDTH)
    console.print(matrix_table(filled, console.width))
    for line in matrix_lines(filled):
        console.print(line, soft_wrap=True, markup=False, highlight=False)
    typer.echo(f"files: {folder / FILE}, {folder / PAGE}")
    raise typer.Exit(filled.exit_code)


def _served(experiment: "Experiment", store: Path) -> "Case":
    """Run against a model served by Ray; its report is in the store like any other.

    Raises:
        EnvironmentFault: the run left nothing to count.
    """
    from tocsin.chaos.past_runs import past_runs
    from tocsin.chaos.store import load_case
    from tocsin.core.errors import EnvironmentFault
    from tocsin.ray_jobs.chaos_run import chaos_run

    before = {run.id for run in past_runs(store, experiment.name)}
    chaos_run(experiment, store, 0, f"tocsin chaos matrix --seed {experiment.seed}")
    made = [run for run in past_runs(store, experiment.name) if run.id not in before]
    if not made:
        raise EnvironmentFault("matrix: the run on Ray was not recorded; see the lines above")
    return load_case(made[0].folder)
