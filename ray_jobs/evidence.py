"""What the processes of a node left on disk during a run goes into the run's own folder."""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tocsin.core.errors import EnvironmentFault

_STATE = ".state-"
_ORPHAN_KEPT_S = 24 * 3600.0
"""What a killed run left may be evidence: it is looked at for a day, then it is only disk."""
_DESTINATIONS = {
    "journal/snapshots": "repro/snapshots",
    "journal": "logs/failures",
    "spans": "logs/spans",
    "metrics": "logs/metrics",
}
"""Folders of a node, and where a run keeps what is in them; an inner folder before its parent."""


@contextmanager
def state_folder(store: Path) -> Iterator[Path]:
    """A node folder for one run only, on the disk of the store; removed at the end.

    Raises:
        EnvironmentFault: the store cannot be written.
    """
    try:
        store.mkdir(parents=True, exist_ok=True)
        _sweep(store)
        state = Path(tempfile.mkdtemp(prefix=f"{_STATE}{os.getpid()}-", dir=store))
    except OSError as error:
        raise EnvironmentFault(
            f"store: {store} cannot be written ({error.strerror}), expected a folder with room "
            "for the run's files; free some or choose another with --store"
        ) from error
    try:
        yield state
    finally:
        shutil.rmtree(state, ignore_errors=True)


def _sweep(store: Path) -> None:
    """Remove folders of runs that were killed long ago."""
    for orphan in store.glob(f"{_STATE}*-*"):
        pid = orphan.name.removeprefix(_STATE).partition("-")[0]
        running = pid.isdigit() and Path(f"/proc/{pid}").exists()
        if not running and time.time() - orphan.stat().st_mtime > _ORPHAN_KEPT_S:
            shutil.rmtree(orphan, ignore_errors=True)


def collect(state: Path, run_dir: Path) -> None:
    """Copy journals, snapshots, spans and counter files into a run's folder.

    It copies, because the servers still write: what they add afterwards belongs to no request.

    Args:
        state: node folder (`ray_jobs.places`).

    Raises:
        OSError: the disk is full, or a folder cannot be written.
    """
    for source, destination in _DESTINATIONS.items():
        origin = state / source
        if not origin.is_dir():
            continue
        target = run_dir / destination
        target.mkdir(parents=True, exist_ok=True)
        for path in sorted(origin.iterdir()):
            if path.name.startswith("."):
                continue  # a snapshot that is being written, or a lock
            if path.is_dir() and source == "journal/snapshots":
                shutil.copytree(path, target / path.name, dirs_exist_ok=True)
            elif path.is_file():
                shutil.copy2(path, target / path.name)
