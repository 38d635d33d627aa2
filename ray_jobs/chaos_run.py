"""A chaos run from an experiment to an exit code: cluster, deployment, run, clean-up."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path

from tocsin.chaos.progress import Progress, ProgressState
from tocsin.chaos.progress_view import progress_view
from tocsin.chaos.run import run
from tocsin.chaos.spec import Experiment
from tocsin.core.errors import SpecError
from tocsin.engine.weights import prepare
from tocsin.ray_jobs.alert_reading import alert_reading
from tocsin.ray_jobs.application import deploy
from tocsin.ray_jobs.chaos_file import ChaosFile
from tocsin.ray_jobs.cluster import Cluster, check_port, free_port
from tocsin.ray_jobs.evidence import collect, state_folder
from tocsin.ray_jobs.ground import check_own_cluster, needs_road, needs_sink
from tocsin.ray_jobs.oracle import cache_folder, options_of
from tocsin.ray_jobs.own_alerting import own_alerting
from tocsin.ray_jobs.repros import write_repros
from tocsin.ray_jobs.run_note import annotated
from tocsin.ray_jobs.sink import Sink
from tocsin.ray_jobs.system import RaySystem

_HOST = "127.0.0.1"


def chaos_run(
    experiment: Experiment, store: Path, port: int, arguments: str, *, alerts: bool = False
) -> int:
    """Serve what the experiment names, run it, and take everything down again.

    Args:
        port: of the gateway; 0: any free one.
        arguments: how to run the same again, for the report.
        alerts: Prometheus and Alertmanager watch it, and what they tell is judged.

    Returns:
        The exit code of the run.

    Raises:
        SpecError: alerts of an experiment that takes their receiver away.
        EnvironmentFault: no model, no cluster, no port, no room for the run's files, or alerts are
            wanted and a program for them is missing.
    """
    names = {"TOCSIN_DRILL": "1", "TOCSIN_CHAOS_RUN": f"{experiment.name} {experiment.seed}"}
    port = port or free_port(_HOST)
    if alerts and needs_sink(experiment):
        raise SpecError(
            f"{experiment.name}: it takes the receiver of alerts away itself; run it without "
            "--alerts"
        )
    progress = progress_view()
    progress.update(ProgressState(phase="set-up"))
    with ExitStack() as around:
        sink = around.enter_context(closing(Sink())) if needs_sink(experiment) else None
        names |= dict(sink.environment()) if sink else {}
        state = around.enter_context(state_folder(store))
        if alerts:
            names |= around.enter_context(own_alerting(state / "alerts", port, progress.note))
        around.enter_context(environment(TOCSIN_STATE=str(state), **names))
        return _served_run(experiment, store, port, arguments, state, sink, progress)


def _served_run(
    experiment: Experiment,
    store: Path,
    port: int,
    arguments: str,
    state: Path,
    sink: Sink | None,
    progress: Progress,
) -> int:
    options = options_of(experiment, prepare(experiment.system.model))
    check_port(_HOST, port)
    with Cluster(options.replicas, nodes=experiment.system.nodes) as cluster:
        check_own_cluster(experiment, own=cluster.started)
        progress.note(f"Ray is up; starting {options.replicas} checked replicas")
        token = os.environ.get("TOCSIN_TOKEN", "")
        served = deploy(options, host=_HOST, port=port, token=token)
        progress.note(f"serving {options.served_name} at {served.url}")
        rights = "" if token else " (read-only; set TOCSIN_TOKEN to switch checks there)"
        progress.note(f"watch it live at {served.url}/live{rights}")
        system = RaySystem(
            served,
            cache_folder(),
            road=needs_road(experiment),
            sink=sink,
            alerts=None if sink else alert_reading(options.served_name, progress.note),
        )
        told = f"chaos run {experiment.name}, seed {experiment.seed}: {arguments}"
        try:
            with (
                closing(ChaosFile(state)) as meter,
                annotated(told, (experiment.name,), progress.note),
            ):
                return run(
                    experiment,
                    system,
                    store,
                    progress=progress,
                    arguments=arguments,
                    keep=partial(keep_evidence, state),
                    meter=meter,
                )
        finally:
            system.close()


def keep_evidence(state: Path, run_dir: Path) -> None:
    """What the servers left, and a reproduction of each kind of failure."""
    collect(state, run_dir)
    write_repros(run_dir)


@contextmanager
def environment(**variables: str) -> Iterator[None]:
    """What the processes of a cluster of our own inherit; a cluster that we join has its own."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
