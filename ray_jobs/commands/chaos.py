"""`tocsin chaos …`: run an experiment, look at its plan, judge it again, take back what it left."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from tocsin.core.clock import SystemClock
from tocsin.core.errors import SpecError
from tocsin.core.terms import Profile
from tocsin.ray_jobs.commands.chaos_compare import compare
from tocsin.ray_jobs.commands.chaos_crash_paths import crash_paths
from tocsin.ray_jobs.commands.chaos_export import export
from tocsin.ray_jobs.commands.chaos_matrix import matrix
from tocsin.ray_jobs.commands.chaos_remote import (
    ARCHIVE_LIMIT_MIB,
    START_TIMEOUT_S,
    ArchiveLimit,
    KubeContext,
    Namespace,
    PrintArchive,
    Publish,
    ReleaseName,
    StartTimeout,
    delivery,
    elsewhere,
    run_elsewhere,
    unpack,
)
from tocsin.ray_jobs.commands.chaos_replay import replay
from tocsin.ray_jobs.commands.chaos_serve import serve
from tocsin.ray_jobs.commands.chaos_shrink import shrink
from tocsin.ray_jobs.commands.chaos_sim import TINY, Sim, SimModel, run_simulated
from tocsin.ray_jobs.commands.chaos_soak import soak
from tocsin.ray_jobs.commands.chaos_swarm import swarm
from tocsin.ray_jobs.commands.edge import one_line, terminated_as_interrupt

_DEFAULT_EXPERIMENT = "first-light"

chaos_app = typer.Typer(no_args_is_help=True, help="Break the served model and judge its answers.")
chaos_app.command()(one_line(unpack))
chaos_app.command()(one_line(export))
chaos_app.command()(one_line(compare))
chaos_app.command()(one_line(serve))
chaos_app.command()(one_line(replay))
chaos_app.command()(one_line(shrink))
chaos_app.command()(one_line(swarm))
chaos_app.command()(one_line(matrix))
chaos_app.command()(one_line(crash_paths))
chaos_app.command()(one_line(soak))

Spec = Annotated[str, typer.Argument(help="name of a built-in experiment, or path of a YAML file")]
Seed = Annotated[int | None, typer.Option(help="instead of the experiment's own")]
ProfileOption = Annotated[Profile | None, typer.Option(help="how much is checked")]
Store = Annotated[Path, typer.Option(help="folder of the runs")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="0: any free one")]
On = Annotated[
    str,
    typer.Option(help="URL of an application that is served already; nothing is deployed"),
]
Alerts = Annotated[
    bool,
    typer.Option("--alerts", help="Prometheus and Alertmanager watch it, and are judged as well"),
]
StopOnAlert = Annotated[
    str, typer.Option(help="URL of an Alertmanager; an alert that begins meanwhile ends the run")
]
StopMatchers = Annotated[
    list[str] | None,
    typer.Option(help='which alerts end it, such as severity="P0"; may be given several times'),
]

PolicyDigest = Annotated[
    str, typer.Option(help="wait until the policy's file has this SHA-256: ConfigMaps arrive late")
]


@chaos_app.command()
@one_line
def run(
    spec: Spec = _DEFAULT_EXPERIMENT,
    seed: Seed = None,
    profile: ProfileOption = None,
    store: Store = Path("store"),
    port: Port = 0,
    on: On = "",
    stop_on_alert: StopOnAlert = "",
    stop_matchers: StopMatchers = None,
    dry_run: Annotated[bool, typer.Option(help="print plan and targets, and stop")] = False,
    print_archive: PrintArchive = False,
    archive_limit: ArchiveLimit = ARCHIVE_LIMIT_MIB,
    publish: Publish = "",
    kube_context: KubeContext = "",
    namespace: Namespace = "",
    release: ReleaseName = "",
    start_timeout: StartTimeout = START_TIMEOUT_S,
    policy_sha256: PolicyDigest = "",
    sim: Sim = False,
    model: SimModel = TINY,
    alerts: Alerts = False,
    wait_s: Annotated[
        float, typer.Option(min=0, help="seconds for what is served to have all its replicas")
    ] = 0.0,
) -> None:
    """Serve the model, break it, judge every answer; the exit code is the verdict.

    With RAY_ADDRESS=http://host:8265 or --kube-context it runs there, and its report comes home.
    """
    _check_alerts(alerts, elsewhere=bool(sim or on or kube_context))
    if sim:
        raise typer.Exit(run_simulated(spec, seed, profile, store, model))
    where = elsewhere(kube_context, namespace, release, start_timeout)
    if where is not None:
        words = _further(publish, on, stop_on_alert, stop_matchers or (), archive_limit)
        code = run_elsewhere(
            where, spec, seed=seed, profile=profile, store=store, extra=words, dry_run=dry_run
        )
        raise typer.Exit(code)
    with (
        delivery(store, print_archive, archive_limit, publish) as delivered,
        terminated_as_interrupt(),
    ):
        from tocsin.chaos.plan import make_plan, plan_table
        from tocsin.chaos.policy import POLICY_ENV
        from tocsin.chaos.spec_file import load_experiment, written_name

        if policy_sha256:
            from tocsin.ray_jobs.arrival import wait_for_policy

            wait_for_policy(policy_sha256, SystemClock())
        experiment = load_experiment(spec, seed=seed, profile=profile)
        if dry_run and not on and not os.environ.get(POLICY_ENV):
            typer.echo(plan_table(make_plan(experiment)))
            return
        from tocsin.ray_jobs.attack import attack_of

        attack = attack_of(on, stop_on_alert, stop_matchers or ())
        if attack is not None and wait_s:
            from tocsin.ray_jobs.arrival import wait_for_service

            wait_for_service(attack.url, wait_s, SystemClock())
        if attack is not None and (dry_run or attack.dry):
            from tocsin.ray_jobs.dry_run import dry_run as tell

            tell(experiment, attack, typer.echo)
            return
        from tocsin.ray_jobs.attach import attached_run
        from tocsin.ray_jobs.chaos_run import chaos_run

        words = ["tocsin", "chaos", "run", written_name(spec), "--seed", str(experiment.seed)]
        words += ["--profile", str(profile)] if profile else []
        delivered.begin(experiment.name)
        if attack is not None:
            words += ["--on", attack.url]
            code = attached_run(experiment, store, attack, " ".join(words))
        else:
            words += ["--alerts"] if alerts else []
            code = chaos_run(experiment, store, port, " ".join(words), alerts=alerts)
        raise typer.Exit(delivered.finish(code))


def _check_alerts(alerts: bool, *, elsewhere: bool) -> None:
    """Alerting of its own goes with a model of its own."""
    if alerts and (elsewhere or os.environ.get("RAY_ADDRESS", "")):
        raise SpecError(
            "chaos run: --alerts is for a run that serves the model itself; one on a service that "
            "runs already reads the Alertmanager of TOCSIN_ALERTMANAGER_URL"
        )


def _further(
    publish: str, on: str, stop_on_alert: str, stop_matchers: Sequence[str], archive_limit: float
) -> list[str]:
    """The options that go along to where a run is made."""
    words = ["--publish", publish] if publish else []
    words += ["--on", on] if on else []
    words += ["--stop-on-alert", stop_on_alert] if stop_on_alert else []
    words += [word for one in stop_matchers for word in ("--stop-matchers", one)]
    if archive_limit != ARCHIVE_LIMIT_MIB:
        words += ["--archive-limit", f"{archive_limit:g}"]
    return words


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
    """Judge a recorded run again, from its files alone; one of millions of requests too."""
    from tocsin.chaos.scale.recorder import REQUESTS

    where = run_dir.resolve()
    if (where / REQUESTS).is_dir():
        from tocsin.chaos.scale.__main__ import check as check_at_scale

        check_at_scale(where)
    from tocsin.chaos.progress_view import progress_view
    from tocsin.chaos.run import check as check_again

    raise typer.Exit(check_again(where, progress_view()))


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
    """Print the fault catalogue: what makes each row, who must see it, what cannot run here."""
    from tocsin.chaos.catalogue import catalogue_table

    typer.echo(catalogue_table(), nl=False)


@chaos_app.command()
@one_line
def demo() -> None:
    """One poisoned KV page: the same story with checks off and on, side by side."""
    from tocsin.chaos.policy import POLICY_ENV

    if os.environ.get(POLICY_ENV):
        raise SpecError(
            "chaos demo: it serves an application of its own, and here is a chaos policy; run it "
            "on a machine without one"
        )
    from tocsin.ray_jobs.demo import tell

    raise typer.Exit(tell())
