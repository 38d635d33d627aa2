"""`tocsin chaos run --sim`: the experiment in one process on a virtual clock, run twice."""

from pathlib import Path
from typing import Annotated

import typer

from tocsin.core.terms import Profile

TINY = "tiny"
Sim = Annotated[
    bool, typer.Option("--sim", help="in one process on a virtual clock, without Ray; run twice")
]
SimModel = Annotated[
    str,
    typer.Option(
        "--model",
        help="in simulation: tiny (random weights), stub (no model), or a model's name or folder",
    ),
]


def run_simulated(
    spec: str, seed: int | None, profile: Profile | None, store: Path, model: str
) -> int:
    """Simulate an experiment; the exit code is the verdict, 3 when the second run was another."""
    from tocsin.chaos.progress_view import progress_view
    from tocsin.chaos.spec_file import load_experiment, written_name
    from tocsin.ray_jobs.sim.simulate import Simulator, simulate

    experiment = load_experiment(spec, seed=seed, profile=profile)
    words = ["tocsin", "chaos", "run", written_name(spec), "--seed", str(experiment.seed), "--sim"]
    words += ["--profile", str(profile)] if profile else []
    words += ["--model", model] if model != TINY else []
    done = simulate(
        Simulator(model), experiment, store, arguments=" ".join(words), progress=progress_view()
    )
    if done.difference:
        typer.echo(f"tocsin: the same seed went two ways: {done.difference}", err=True)
    return done.exit_code
