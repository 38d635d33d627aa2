"""A chaos run from an experiment to an exit code: cluster, deployment, run, clean-up."""

from pathlib import Path

from tocsin.chaos.progress import ProgressState
from tocsin.chaos.progress_view import progress_view
from tocsin.chaos.run import run
from tocsin.chaos.spec import Experiment
from tocsin.core.errors import EnvironmentFault
from tocsin.engine.weights import prepare
from tocsin.ray_jobs.application import deploy
from tocsin.ray_jobs.cluster import Cluster, check_port, free_port
from tocsin.ray_jobs.oracle import cache_folder, options_of
from tocsin.ray_jobs.system import RaySystem

_HOST = "127.0.0.1"


def chaos_run(experiment: Experiment, store: Path, port: int, arguments: str) -> int:
    """Serve what the experiment names, run it, and take everything down again.

    Args:
        port: of the gateway; 0: any free one.
        arguments: how to run the same again, for the report.

    Returns:
        The exit code of the run.

    Raises:
        EnvironmentFault: no model, no cluster, no port, no room for the run's files.
    """
    _make_room(store)
    progress = progress_view()
    progress.update(ProgressState(phase="set-up"))
    options = options_of(experiment, prepare(experiment.system.model))
    port = port or free_port(_HOST)
    check_port(_HOST, port)
    with Cluster(options.replicas):
        progress.note(f"Ray is up; starting {options.replicas} checked replicas")
        served = deploy(options, host=_HOST, port=port)
        progress.note(f"serving {options.served_name} at {served.url}")
        system = RaySystem(served, cache_folder())
        try:
            return run(experiment, system, store, progress=progress, arguments=arguments)
        finally:
            system.close()


def _make_room(store: Path) -> None:
    """The folder of runs exists and takes a file; better known now than after the run."""
    probe = store / ".writable"
    try:
        store.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"\0" * 4096)
        probe.unlink()
    except OSError as error:
        raise EnvironmentFault(
            f"store: {store} cannot be written ({error.strerror}), expected a folder with room "
            "for the run's files; free some or choose another with --store"
        ) from error
