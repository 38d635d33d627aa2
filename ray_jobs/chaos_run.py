"""A chaos run from an experiment to an exit code: cluster, deployment, run, clean-up."""

import os
from pathlib import Path

from tocsin.chaos.progress import ProgressState
from tocsin.chaos.progress_view import progress_view
from tocsin.chaos.run import run
from tocsin.chaos.spec import Experiment
from tocsin.engine.weights import prepare
from tocsin.ray_jobs.application import deploy
from tocsin.ray_jobs.cluster import Cluster, check_port, free_port
from tocsin.ray_jobs.options import ServeOptions
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
    store.mkdir(parents=True, exist_ok=True)
    progress = progress_view()
    progress.update(ProgressState(phase="set-up"))
    options = _options(experiment, prepare(experiment.system.model))
    port = port or free_port(_HOST)
    check_port(_HOST, port)
    with Cluster(options.replicas):
        progress.note(f"Ray is up; starting {options.replicas} checked replicas")
        served = deploy(options, host=_HOST, port=port)
        progress.note(f"serving {options.served_name} at {served.url}")
        system = RaySystem(served, _cache())
        try:
            return run(experiment, system, store, progress=progress, arguments=arguments)
        finally:
            system.close()


def _options(experiment: Experiment, path: Path) -> ServeOptions:
    system = experiment.system
    return ServeOptions(
        path=str(path),
        model=system.model,
        dtype=system.dtype,
        profile=system.profile,
        replicas=system.replicas,
        slots=system.slots,
        pages=system.pages,
        page_size=system.page_size,
        max_length=system.max_length,
    )


def _cache() -> Path:
    """Where golden answers and certificates are kept between runs."""
    chosen = os.environ.get("TOCSIN_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "tocsin"
