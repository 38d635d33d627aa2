"""The command line: `tocsin serve` and `tocsin chaos …`."""

import os
import secrets
import sys
import threading
from pathlib import Path
from typing import Annotated

import typer

from tocsin.core.errors import EnvironmentFault, SpecError
from tocsin.core.terms import Profile
from tocsin.ray_jobs.commands.alerts import alerts_app, relay_beside
from tocsin.ray_jobs.commands.bisect import bisect
from tocsin.ray_jobs.commands.dashboards import app as dashboards_app
from tocsin.ray_jobs.commands.digest import digest
from tocsin.ray_jobs.commands.edge import one_line, terminated_as_interrupt
from tocsin.ray_jobs.commands.monitor import monitor
from tocsin.ray_jobs.commands.reproduce import reproduce
from tocsin.ray_jobs.commands.top import top
from tocsin.ray_jobs.commands.trace import trace

_DEFAULT_EXPERIMENT = "first-light"

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
chaos_app = typer.Typer(no_args_is_help=True, help="Break the served model and judge its answers.")
app.add_typer(chaos_app, name="chaos")
app.add_typer(alerts_app, name="alerts")
app.add_typer(dashboards_app, name="dashboards")
app.command()(reproduce)
app.command()(bisect)
app.command()(monitor)
app.command()(digest)
app.command()(top)
app.command()(trace)

Spec = Annotated[str, typer.Argument(help="name of a built-in experiment, or path of a YAML file")]
Seed = Annotated[int | None, typer.Option(help="instead of the experiment's own")]
ProfileOption = Annotated[Profile | None, typer.Option(help="how much is checked")]
Store = Annotated[Path, typer.Option(help="folder of the runs")]
Model = Annotated[str, typer.Option(help="built-in name, or folder of a model")]
Address = Annotated[str, typer.Option(help="address to listen on")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="0: any free one")]


@app.command()
@one_line
def serve(
    host: Address = "127.0.0.1",
    port: Port = 8000,
    replicas: Annotated[int, typer.Option(min=1, max=64)] = 2,
    profile: ProfileOption = None,
    model: Annotated[
        str, typer.Option(help="built-in name, or folder of a model")
    ] = "smollm2-135m",
    max_length: Annotated[int, typer.Option(min=32, help="prompt and answer tokens")] = 1024,
    archive_url: Annotated[
        str, typer.Option(help="copy finished journal files to s3://…, oss://… or file://…")
    ] = "",
    journal_prompts: Annotated[
        bool, typer.Option(help="store prompts with failures, for a replay on the model")
    ] = False,
    alert_relay: Annotated[
        Path | None, typer.Option(help="start an alert relay too (tocsin alerts example)")
    ] = None,
) -> None:
    """Serve the checked model with an OpenAI-compatible interface until Ctrl-C."""
    from tocsin.engine.weights import prepare
    from tocsin.ray_jobs.application import deploy
    from tocsin.ray_jobs.cluster import Cluster, check_port, free_port
    from tocsin.ray_jobs.options import ServeOptions

    path = prepare(model)
    port = port or free_port(host)
    check_port(host, port)
    given = os.environ.get("TOCSIN_TOKEN", "")
    token = given or secrets.token_urlsafe(24)
    options = ServeOptions(
        path=str(path),
        model=model,
        profile=profile or Profile.FULL,
        replicas=replicas,
        max_length=max_length,
        pages=max(192, 8 * max_length // 16 + 1),
        archive_url=archive_url,
        journal_prompts=journal_prompts,
    )
    typer.echo(f"tocsin: starting {replicas} replicas of {options.served_name} …", err=True)
    with relay_beside(alert_relay), Cluster(replicas), terminated_as_interrupt():
        served = deploy(options, host=host, port=port, token=token)
        typer.echo(f"tocsin: serving {options.served_name} at {served.url} (Ctrl-C stops it)")
        typer.echo(f"  curl {served.url}/v1/models")
        typer.echo(f"  curl {served.url}/metrics")
        typer.echo(f"  live page: {served.url}/live")
        if not given:
            typer.echo(f"  switchboard token (set TOCSIN_TOKEN to choose it): {token}")
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            typer.echo("tocsin: stopping", err=True)


@chaos_app.command()
@one_line
def run(
    spec: Spec = _DEFAULT_EXPERIMENT,
    seed: Seed = None,
    profile: ProfileOption = None,
    store: Store = Path("store"),
    port: Port = 0,
    dry_run: Annotated[bool, typer.Option(help="print the plan and stop")] = False,
) -> None:
    """Serve the model, break it, judge every answer; the exit code is the verdict."""
    from tocsin.chaos.plan import make_plan, plan_table
    from tocsin.chaos.spec_file import load_experiment

    experiment = load_experiment(spec, seed=seed, profile=profile)
    if dry_run:
        typer.echo(plan_table(make_plan(experiment)))
        return
    from tocsin.ray_jobs.chaos_run import chaos_run

    words = ["tocsin", "chaos", "run", spec, "--seed", str(experiment.seed)]
    words += ["--profile", str(profile)] if profile else []
    raise typer.Exit(chaos_run(experiment, store, port, " ".join(words)))


@chaos_app.command()
@one_line
def lint(spec: Spec = _DEFAULT_EXPERIMENT) -> None:
    """Read an experiment and say what is wrong with it."""
    from tocsin.chaos.plan import make_plan
    from tocsin.chaos.spec_file import load_experiment

    experiment = load_experiment(spec)
    plan = make_plan(experiment)
    typer.echo(f"{experiment.name}: well-formed, {len(plan.occurrences)} occurrences")


@chaos_app.command()
@one_line
def plan(spec: Spec = _DEFAULT_EXPERIMENT, seed: Seed = None) -> None:
    """Print when each fault would be injected, and the plan's digest."""
    from tocsin.chaos.plan import make_plan, plan_table
    from tocsin.chaos.spec_file import load_experiment

    typer.echo(plan_table(make_plan(load_experiment(spec, seed=seed))))


@chaos_app.command()
@one_line
def check(run_dir: Annotated[Path, typer.Argument()] = Path("store/latest")) -> None:
    """Judge a recorded run again, from its files alone."""
    from tocsin.chaos.progress_view import progress_view
    from tocsin.chaos.run import check as check_again

    raise typer.Exit(check_again(run_dir.resolve(), progress_view()))


@chaos_app.command()
@one_line
def report(run_dir: Annotated[Path, typer.Argument()] = Path("store/latest")) -> None:
    """Write a recorded run's report.html anew and say where it is."""
    from tocsin.chaos.judge import judge
    from tocsin.chaos.report import write_report
    from tocsin.chaos.store import load_case

    where = run_dir.resolve()
    case = load_case(where)
    typer.echo(str(write_report(where, case, judge(case))))


@chaos_app.command()
@one_line
def heal(
    store: Store = Path("store"),
    every: Annotated[bool, typer.Option("--all", help="every run in the store")] = False,
) -> None:
    """Take away what a killed run may have left armed, and say so; 5 if it cannot be shown."""
    from tocsin.chaos.heal import heal_all
    from tocsin.core.clock import SystemClock

    if not every:
        raise SpecError("chaos heal: say --all; it looks at every run in the store")
    raise typer.Exit(heal_all(store, None, clock=SystemClock(), say=typer.echo))


@chaos_app.command()
@one_line
def catalogue() -> None:
    """Print every fault: where it acts, what it does, what must see it."""
    from rich.console import Console
    from rich.table import Table

    from tocsin.chaos.contract import faults

    table = Table(box=None)
    for name in ("fault", "scope", "alert", "detectors"):
        table.add_column(name, no_wrap=True)  # ids are there to be copied
    table.add_column("what it does")
    for unit in faults().values():
        detectors = "\n".join(unit.expect)
        table.add_row(unit.id, str(unit.scope), str(unit.priority), detectors, unit.summary)
    Console().print(table)


@chaos_app.command()
@one_line
def demo() -> None:
    """One poisoned KV page: the same story with checks off and on, side by side."""
    from tocsin.ray_jobs.demo import tell

    raise typer.Exit(tell())


def main() -> None:
    """Entry point of the `tocsin` command."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except EnvironmentFault as error:
        sys.exit(f"tocsin: {error}")
