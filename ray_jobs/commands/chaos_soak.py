"""`tocsin chaos soak`: random faults for hours, each window judged, memory watched, one report."""

import datetime
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tocsin.core.clock import SystemClock
from tocsin.ray_jobs.commands.chaos_sim import TINY, SimModel

if TYPE_CHECKING:
    from tocsin.ray_jobs.sim.soak import Soaker, Terms

_DEFAULT_REQUESTS = 2_000
_SERVED = "smollm2-135m"


def soak(
    hours: Annotated[float | None, typer.Option(min=0.0, help="end after so long")] = None,
    requests: Annotated[
        int | None, typer.Option(min=1, help="end after so many requests; default 2000")
    ] = None,
    sim: Annotated[bool, typer.Option("--sim", help="in this process, without Ray")] = False,
    faultless: Annotated[
        bool,
        typer.Option("--faultless", help="inject nothing: batching, preemption and cancels alone"),
    ] = False,
    window: Annotated[int, typer.Option(min=1, help="requests of one window")] = 200,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    model: SimModel = "",
    store: Annotated[Path, typer.Option(help="folder of the runs")] = Path("store"),
) -> None:
    """Run window after window of random faults; judge each, and whether anything grows.

    Exit code: 0 all windows passed and nothing grows; 1 one failed, or something leaks; 2 too few
    windows to know (eight are enough); 3 a window proves nothing. The report is written anew after
    each window, so that a soak which is stopped has one too.
    """
    from tocsin.chaos.progress_view import progress_view
    from tocsin.ray_jobs.sim.simulate import Simulator
    from tocsin.ray_jobs.sim.soak import SimGround, Soaker, Terms

    if hours is None and requests is None:
        requests = _DEFAULT_REQUESTS
    terms = Terms(seed, requests, hours, window, faultless)
    now = datetime.datetime.fromtimestamp(SystemClock().wall_s(), tz=datetime.UTC)
    folder = store / "soak" / f"{now:%Y%m%dT%H%M%SZ}-{seed}"
    if sim:
        ground = SimGround(os.getpid(), Simulator(model or TINY))
        raise typer.Exit(_tell(Soaker(terms, ground, folder, typer.echo)))
    from tocsin.ray_jobs.soak_ground import ray_ground

    with ray_ground(store, model or _SERVED, progress_view(), _words(terms)) as served:
        code = _tell(Soaker(terms, served, folder, typer.echo))
    raise typer.Exit(code)


def _words(terms: "Terms") -> str:
    """How to soak like this again."""
    words = ["tocsin", "chaos", "soak", "--seed", str(terms.seed), "--window", str(terms.window)]
    words += ["--requests", str(terms.requests)] if terms.requests is not None else []
    words += ["--hours", f"{terms.hours:g}"] if terms.hours is not None else []
    return " ".join([*words, *(["--faultless"] if terms.faultless else [])])


def _tell(soaker: "Soaker") -> int:
    from tocsin.ray_jobs.sim.soak import FILE, PAGE

    done = soaker.soak()
    windows = done.windows
    for one in done.trends:
        why = f" ({one.why})" if one.why else ""
        scale, unit = (2**20, " MiB") if one.reading.endswith("_bytes") else (1, "")
        typer.echo(
            f"{one.verdict}: {one.process} {one.reading}: {one.first / scale:.1f} to "
            f"{one.last / scale:.1f}{unit}{why}"
        )
    wrong = sum(sum(one.divergences.values()) for one in windows)
    typer.echo(
        f"{done.requests} requests in {len(windows)} windows, "
        f"{sum(one.compared for one in windows)} answers compared with golden, {wrong} differ; "
        f"{sum(one.fired for one in windows)} faults fired, "
        f"{sum(one.preempted for one in windows)} preemptions, "
        f"{sum(one.cancelled for one in windows)} cancels, "
        f"{sum(one.false_alarms for one in windows)} false alarms; {done.wall_s:.0f} s"
    )
    typer.echo(f"{done.verdict}: {done.sentence}")
    typer.echo(f"files: {soaker.folder / FILE}, {soaker.folder / PAGE}")
    return done.exit_code
