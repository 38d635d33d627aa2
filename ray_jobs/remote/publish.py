"""A run's folder copied to wherever fsspec reaches: s3://, gs://, file://, a mounted folder."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tocsin.core.errors import EnvironmentFault

_ATTEMPTS = 1000
_FAILURES = (OSError, ValueError, ImportError, RuntimeError)
"""fsspec's drivers say what went wrong with these, whatever their libraries raise."""


def publish(run_dir: Path, url: str) -> str:
    """Copy a run to `url/<experiment>/<run>`, never onto one that is there.

    Returns:
        The URL of the copy.

    Raises:
        EnvironmentFault: it cannot be reached or written.
    """
    try:
        system, root = _filesystem(url)
        target = _free(system, f"{root.rstrip('/')}/{run_dir.parent.name}/{run_dir.name}")
        for path in _files(run_dir):
            remote = f"{target}/{path.relative_to(run_dir).as_posix()}"
            system.makedirs(remote.rpartition("/")[0], exist_ok=True)
            with path.open("rb") as source, system.open(remote, "wb") as sink:
                shutil.copyfileobj(source, sink)
        return str(system.unstrip_protocol(target))
    except _FAILURES as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise EnvironmentFault(
            f"publish: {url}: the run was not copied there ({reason}), expected a place that "
            f"fsspec can write; the run is whole in {run_dir}"
        ) from error


def check_publish(url: str) -> None:
    """Make sure, before a run that takes minutes, that the URL names a known kind of place.

    Raises:
        EnvironmentFault: nothing is known of such URLs, or the package for them is missing.
    """
    try:
        _filesystem(url)
    except _FAILURES as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise EnvironmentFault(
            f"publish: {url}: {reason}; expected s3://…, gs://…, file://… and its fsspec package "
            "installed where the run is"
        ) from error


def _filesystem(url: str) -> tuple[Any, str]:
    from fsspec.core import url_to_fs  # type: ignore[import-untyped]

    system, root = url_to_fs(url)
    return system, str(root)


def _free(system: Any, wanted: str) -> str:
    for attempt in range(_ATTEMPTS):
        target = f"{wanted}.{attempt}" if attempt else wanted
        if not system.exists(target):
            return target
    raise ValueError(f"{wanted} is there a thousand times")


def _files(run_dir: Path) -> Iterator[Path]:
    """The verdict last: where it is, the copy is whole."""
    files = [path for path in run_dir.rglob("*") if path.is_file() and not path.is_symlink()]
    yield from sorted(files, key=lambda path: (path.name == "verdict.json", path))
