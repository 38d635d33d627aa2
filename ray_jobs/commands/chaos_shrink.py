"""`tocsin chaos shrink RUN`: the smallest experiment that fails in the same way."""

from typing import Annotated

import typer

from tocsin.ray_jobs.commands.chaos_replay import Run
from tocsin.ray_jobs.commands.chaos_sim import TINY, SimModel

EXIT_NOT_MINIMAL = 2


def shrink(
    run: Run = "store/latest",
    model: SimModel = "",
    minutes: Annotated[float, typer.Option(min=0.0, help="stop after so long")] = 30.0,
    tries: Annotated[int, typer.Option(min=0, help="stop after so many runs")] = 200,
) -> None:
    """Take out faults, then requests, as long as the run fails in the same way; in simulation.

    0: nothing more can be taken out; 2: a limit came first, and the same command goes on.
    """
    from tocsin.chaos.judge import judge
    from tocsin.ray_jobs.sim.ending import ending_of
    from tocsin.ray_jobs.sim.replay import recorded_run
    from tocsin.ray_jobs.sim.shrink import Limits, Shrinker
    from tocsin.ray_jobs.sim.simulate import Simulator

    one = recorded_run(run)
    ending = ending_of(one.verdict, one.number)
    simulator = Simulator(model or (one.model if one.simulated else TINY))
    shrinker = Shrinker(
        judged=lambda experiment: judge(simulator.conduct(experiment)),
        ending=ending,
        folder=one.run_dir / "shrink",
        limits=Limits(minutes, tries),
        say=typer.echo,
    )
    typer.echo(f"{one.run_dir.name}: {ending.words}; looking for the smallest plan that does so")
    experiment, left_out = simulator.part(one.case.spec)
    if left_out:
        typer.echo(f"left out, as they cannot be simulated: {', '.join(left_out)}")
    done = shrinker.shrink(experiment)
    work = done.experiment.workload
    typer.echo(
        f"{'minimal' if done.minimal else 'so far'}: {done.occurrences} of "
        f"{len(one.case.plan.occurrences)} occurrences, {work.requests} requests, concurrency "
        f"{work.concurrency}, {work.max_new_tokens} new tokens; {done.tried} runs"
    )
    option = f" --model {simulator.model}" if simulator.model != TINY else ""
    typer.echo(f"again: tocsin chaos run {done.path} --sim{option}")
    raise typer.Exit(0 if done.minimal else EXIT_NOT_MINIMAL)
