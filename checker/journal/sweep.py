"""Keeping a journal folder small: compress, archive, let go after seven days, and a cap."""

import fcntl
import gzip
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tocsin.checker.journal import files
from tocsin.checker.journal.archive import Archive, mark_of
from tocsin.checker.journal.settings import JournalSettings
from tocsin.core.errors import EnvironmentFault

_PART = ".part"
_FAILED = (OSError, EnvironmentFault)

_LOG = logging.getLogger("tocsin.checker")


@dataclass(slots=True)
class Swept:
    """What one sweep did.

    Attributes:
        bytes: what the folder takes up now.
        lag_s: age of the oldest finished file that is not in the archive yet; 0 when none waits.
        archived: files and snapshots; failures: those that could not be.
        dropped: let go after their time, or for the cap, with a copy in the archive (or where
            there is no archive, after their time).
        lost: let go for the cap although there is no copy anywhere.
    """

    bytes: int = 0
    lag_s: float = 0.0
    archived: int = 0
    failures: int = 0
    dropped: int = 0
    lost: int = 0


@dataclass(frozen=True, slots=True)
class _Item:
    """A finished file or a snapshot."""

    end_s: float
    path: Path
    name: str

    @property
    def marked(self) -> bool:
        return mark_of(self.path).is_file()


def sweep(
    folder: Path, now_s: float, settings: JournalSettings, archive: Archive | None = None
) -> Swept | None:
    """Put a folder in order; None when another process of the node is at it.

    Args:
        now_s: wall time, seconds since the epoch.
        archive: None: files go after their time without a copy.
    """
    with _alone(folder) as alone:
        if not alone:
            return None
        swept = Swept()
        _finish_those_of_the_dead(folder, now_s, settings.rotate_s)
        _compress(folder)
        _clear_leftovers(folder)
        items = _items(folder)
        if archive is not None:
            for item in items:
                _archive(item, archive, swept)
        for item in items:
            if now_s - item.end_s >= settings.keep_s and _may_go(item, archive, swept):
                _remove(item)
                swept.dropped += 1
        _fit(folder, settings.disk_bytes_max, swept)
        swept.bytes = size_of(folder)
        if archive is not None:
            waiting = [item.end_s for item in _items(folder) if not item.marked]
            swept.lag_s = max(0.0, now_s - min(waiting)) if waiting else 0.0
        return swept


def size_of(folder: Path) -> int:
    """Bytes of all files below a folder."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:  # another process has just removed it
            continue
    return total


@contextmanager
def _alone(folder: Path) -> Iterator[bool]:
    """Hold the folder's lock, or learn that another does."""
    fd = os.open(folder / ".sweep.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True
    finally:
        os.close(fd)


def _items(folder: Path) -> list[_Item]:
    """Finished files and snapshots, oldest first."""
    done = [_Item(end_s, path, path.name) for end_s, path in files.finished(folder)]
    calls = [
        _Item(end_s, path, f"{files.SNAPSHOTS}/{path.name}")
        for end_s, path in files.snapshots(folder)
    ]
    return sorted([*done, *calls], key=lambda item: (item.end_s, item.name))


def _finish_those_of_the_dead(folder: Path, now_s: float, after_s: float) -> None:
    """A replica that is gone rotates nothing more."""
    for path in files.newest(folder):
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            status = os.fstat(fd)
            quiet = now_s - status.st_mtime >= after_s
            if quiet and status.st_size and not files.is_locked(fd):
                files.rotate(path, status.st_mtime)
        finally:
            os.close(fd)


def _compress(folder: Path) -> None:
    for _, path in files.finished(folder):
        if path.suffix == ".gz":
            continue
        final = files.packed(path)
        work = final.with_name(final.name + _PART)
        try:
            with path.open("rb") as plain, gzip.open(work, "wb", compresslevel=6) as packed:
                shutil.copyfileobj(plain, packed, 1 << 20)
            work.replace(final)
            path.unlink()
        except OSError as error:  # it stays as it is; the next sweep tries again
            work.unlink(missing_ok=True)
            _LOG.error("journal: %s could not be compressed: %s; free the disk", path, error)


def _clear_leftovers(folder: Path) -> None:
    """What a kill has left half done; this process's own work is not under way now."""
    for path in folder.glob(f"*{_PART}"):
        path.unlink(missing_ok=True)
    for path in (folder / files.SNAPSHOTS).glob(f".*{_PART}"):
        owner = path.name.removesuffix(_PART).rpartition(".")[2]
        if not owner.isdigit() or not Path(f"/proc/{owner}").exists():
            shutil.rmtree(path, ignore_errors=True)


def _archive(item: _Item, archive: Archive, swept: Swept) -> None:
    if item.marked:
        return
    try:
        archive.put(item.path, item.name)
    except _FAILED as error:
        swept.failures += 1
        _LOG.error("journal: %s was not archived: %s", item.path, error)
    else:
        swept.archived += 1


def _may_go(item: _Item, archive: Archive | None, swept: Swept) -> bool:
    """Its time is over; with an archive only once that gives it back."""
    if archive is None:
        return True
    if not item.marked:
        return False
    try:
        if archive.holds(item.path, item.name):
            return True
        archive.put(item.path, item.name)
    except _FAILED as error:
        swept.failures += 1
        _LOG.error("journal: %s is kept: %s", item.path, error)
        return False
    return True


def _fit(folder: Path, bytes_max: int, swept: Swept) -> None:
    """Down to the cap: first what has a copy, oldest first, then the oldest of the rest."""
    excess = size_of(folder) - bytes_max
    if excess <= 0:
        return
    for item in sorted(_items(folder), key=lambda one: (not one.marked, one.end_s, one.name)):
        if excess <= 0:
            return
        size = size_of(item.path) if item.path.is_dir() else item.path.stat().st_size
        if item.marked:
            swept.dropped += 1
        else:
            swept.lost += 1
            _LOG.error(
                "journal: %s was dropped without a copy: the folder is over %d bytes; "
                "set archive_url or raise disk_bytes_max",
                item.path,
                bytes_max,
            )
        _remove(item)
        excess -= size


def _remove(item: _Item) -> None:
    if item.path.is_dir():
        shutil.rmtree(item.path, ignore_errors=True)
    else:
        item.path.unlink(missing_ok=True)
        mark_of(item.path).unlink(missing_ok=True)
