"""`tocsin chaos swarm N`: random seeds, faults and parameters, each run simulated."""

from pathlib import Path
from typing import Annotated

import typer

from tocsin.ray_jobs.commands.chaos_sim import TINY, SimModel


def swarm(
    count: Annotated[int, typer.Argument(min=1, metavar="N", help="how many runs")] = 20,
    seed: Annotated[int, typer.Option(min=0, help="of the whole swarm")] = 0,
    keep: Annotated[Path, typer.Option(help="folder of the experiments that did not pass")] = Path(
        "store/swarm"
    ),
    model: SimModel = TINY,
    twice: Annotated[
        bool, typer.Option("--twice", help="run each twice and compare the digests; 3: some differ")
    ] = False,
) -> None:
    """Simulate N drawn experiments, after those that were kept; 0 when all pass, else 1.

    What does not pass is kept as a file, and is run first the next time.
    """
    from itertools import chain

    from rich.console import Console
    from rich.table import Table

    from tocsin.chaos.judge import judge
    from tocsin.chaos.spec import Experiment
    from tocsin.chaos.verdict import EXIT_INVALID, RunVerdict
    from tocsin.ray_jobs.sim.digest import history_digest
    from tocsin.ray_jobs.sim.simulate import Simulator
    from tocsin.ray_jobs.sim.swarm import fly, refly

    simulator = Simulator(model)
    compared: dict[str, bool] = {}

    def judged(experiment: Experiment) -> RunVerdict:
        case = simulator.conduct(experiment)
        if twice:
            again = history_digest(simulator.conduct(experiment))
            compared[experiment.name] = again == history_digest(case)
        return judge(case)

    table = Table(box=None)
    for name in ("run", "faults", "verdict", "fired", "seen", "silent", "what happened"):
        table.add_column(name, no_wrap=name != "what happened")
    failed = []
    known = {path.stem for path in keep.glob("*.yaml")}
    for flight in chain(refly(judged, keep), fly(count, seed, judged, keep)):
        name = flight.experiment.name
        kinds = " ".join(one.kind for one in flight.experiment.faults)
        typer.echo(f"{name}: {flight.said[0]}: {kinds}")
        table.add_row(name, str(len(flight.experiment.faults)), *flight.said)
        if not flight.passed:
            failed.append(flight)
        elif flight.kept is not None:
            typer.echo(f"{flight.kept} passes now: keep it as a test, or remove it")
    Console().print(table)
    for path in sorted({one.kept for one in failed if one.kept}):
        typer.echo(f"kept: {path}; again: tocsin chaos run {path} --sim")
    typer.echo(f"{count} new runs, {len(known)} kept ones; {len(failed)} did not pass; seed {seed}")
    if twice:
        other = [name for name, equal in compared.items() if not equal]
        typer.echo(
            f"{len(compared) - len(other)} of {len(compared)} digests are equal the second time"
            + (f"; not those of {', '.join(other)}" if other else "")
        )
        if other:
            raise typer.Exit(EXIT_INVALID)
    raise typer.Exit(1 if failed else 0)
