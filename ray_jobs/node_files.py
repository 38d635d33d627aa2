"""The metric files of one node: living ones added up, dead ones archived, nothing lost or doubled.

One process of a node reads: it holds a lock, and another hub on the same machine stands by. The
archive and the names of the files that are in it are written as one file in one rename, so that a
hub that dies in between leaves each count in exactly one place.
"""

import contextlib
import fcntl
import json
import logging
import mmap
import os
import re
import struct
from pathlib import Path
from typing import Any, BinaryIO

from tocsin.core.clock import Clock
from tocsin.core.metrics import HUB_MERGE, HUB_MERGE_DURATION, REPLICA_UP, MetricType
from tocsin.ray_jobs.metric_file import (
    CLOSED,
    EXEMPLARS,
    SUFFIX,
    metric_key,
    started_ticks,
    state_letter,
)
from tocsin.ray_jobs.numbers import Exemplar, Numbers, series_of
from tocsin.ray_jobs.places import HUB_LOCK, metrics_folder

STEPS_S = 10.0
"""A replica whose stepping thread has not written for so long is not up, though it lives."""
LOST_S = 300.0
_NAME = re.compile(r"^.+-(?P<pid>\d+)-(?P<start>-?\d+)(-\d+)?$")
_LENGTH = struct.Struct("i")
_NUMBER = struct.Struct("dd")
_STOPPED = ("T", "t")

_LOG = logging.getLogger("tocsin.metrics")


class NodeFiles:
    """Reads the metric files of a node.

    Args:
        folder: the node folder.

    Attributes:
        living: processes that lived at the last reading.
    """

    def __init__(self, folder: Path, clock: Clock) -> None:
        """Nothing is read before the lock is held."""
        self.folder = metrics_folder(folder)
        self._clock = clock
        self._lock: BinaryIO | None = None
        self._readers: dict[str, _Reader] = {}
        self.living = 0
        self._archive = _Archive(self.folder / "archive.json")

    def holds(self) -> bool:
        """Whether this process reads for the node; takes the lock when it is free."""
        if self._lock is None:
            file = (self.folder / HUB_LOCK).open("ab")
            try:
                fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.close()
                return False
            self._lock = file
            self._archive.load()
        return True

    def read(self) -> Numbers:
        """The numbers of all processes that ever counted here; those of the dead are archived."""
        if not self.holds():
            self.living = 1  # at least the hub that reads here
            return Numbers()
        began_ns, wall_s = self._clock.now_ns(), self._clock.wall_s()
        self._find()
        numbers = Numbers()
        self.living = 0
        for name, reader in list(self._readers.items()):
            alive = reader.alive()  # asked first: what it wrote before its death is in the file
            damage = reader.damage()
            if damage is not None and not alive:
                if not self._archive.add(reader, wall_s):  # what was read while it was whole
                    reader.give_counters(numbers)
                del self._readers[name]
                reader.close()
                set_aside(reader.path, damage)
            elif alive:
                reader.give(numbers, wall_s)
                self.living += 1
            elif self._archive.add(reader, wall_s):
                del self._readers[name]
                reader.close()
                _delete(reader.path)
            else:  # the disk is full: its file stays, and counts from there
                reader.give_counters(numbers)
        self._archive.give(numbers, wall_s)
        numbers.put(metric_key(HUB_MERGE.name, "", ()), wall_s)
        took_s = (self._clock.now_ns() - began_ns) / 1e9
        numbers.put(metric_key(HUB_MERGE_DURATION.name, "", ()), took_s)
        return numbers

    def close(self) -> None:
        """Let the next hub read."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __del__(self) -> None:
        """The lock ends with its holder."""
        if getattr(self, "_lock", None) is not None:
            self.close()

    def _find(self) -> None:
        for path in self.folder.glob(f"*{SUFFIX}"):
            if path.name in self._archive.merged:  # a hub died before it could delete it
                _delete(path)
            elif path.name not in self._readers and _NAME.match(path.stem):
                with contextlib.suppress(OSError, ValueError):  # not finished: next time
                    self._readers[path.name] = _Reader(path)


class _Reader:
    """Follows the file of one process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        match = _NAME.match(path.stem)
        self._pid = int(match["pid"]) if match else 0
        self._start = int(match["start"]) if match else 0
        self._map = _mapped(path)
        self._cursor = 8
        self._places: list[tuple[str, int]] = []
        self._exemplars: dict[str, Exemplar] = {}
        self._exemplars_ns = 0
        self._told = False
        self.values: dict[str, tuple[float, float]] = {}
        """Value and wall time of its last write, by key."""

    def alive(self) -> bool:
        """Whether the very process that made the file is still there."""
        return started_ticks(self._pid) == self._start and state_letter(self._pid) not in "ZX"

    def damage(self) -> Exception | None:
        """Read; why that failed, None if it did not. The numbers read before are kept then."""
        try:
            self.read()
        except (struct.error, ValueError, TypeError, OSError) as error:
            if not self._told:
                self._told = True
                _LOG.error(
                    "metrics: %s cannot be read (%r), expected a file of this version; its last "
                    "good numbers are shown",
                    self.path,
                    error,
                )
            return error
        return None

    def read(self) -> None:
        """Take over what it holds now.

        Raises:
            struct.error, ValueError, OSError: the file is damaged.
        """
        (used,) = _LENGTH.unpack_from(self._map, 0)
        if used > len(self._map):
            self._map.close()
            self._map = _mapped(self.path)
        while self._cursor + 4 < used:
            (length,) = _LENGTH.unpack_from(self._map, self._cursor)
            at = self._cursor + 4
            place = at + length + (8 - (length + 4) % 8)
            if length <= 0 or place + _NUMBER.size > len(self._map):
                raise ValueError(f"an entry of {length} bytes at {self._cursor}")
            key = self._map[at : at + length].decode()
            series_of(key)
            self._places.append((key, place))
            self._cursor = place + _NUMBER.size
        self.values = {key: _NUMBER.unpack_from(self._map, at) for key, at in self._places}

    def give(self, numbers: Numbers, wall_s: float) -> None:
        """All its numbers; a replica that has stopped or does not step is not up."""
        stopped = state_letter(self._pid) in _STOPPED
        for key, (value, written_s) in self.values.items():
            if _is_up(key):
                value = float(not stopped and wall_s - written_s <= STEPS_S)
            numbers.put(key, value)
        numbers.exemplars.update(self._read_exemplars())

    def give_counters(self, numbers: Numbers) -> None:
        """Its counters alone: gauges of the dead would stand still for ever."""
        for key, (value, _) in self.values.items():
            series = series_of(key)
            if series is not None and series.metric.type is not MetricType.GAUGE:
                numbers.put(key, value)

    def close(self) -> None:
        self._map.close()

    def _read_exemplars(self) -> dict[str, Exemplar]:
        path = self.path.with_suffix(EXEMPLARS)
        try:
            changed_ns = path.stat().st_mtime_ns
            if changed_ns != self._exemplars_ns:
                kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
                self._exemplars = {key: Exemplar(*one) for key, one in kept.items()}
                self._exemplars_ns = changed_ns
        except (OSError, ValueError):
            pass  # there is none yet
        return self._exemplars


class _Archive:
    """Counters of processes that are gone, and the replicas that were lost lately."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.merged: set[str] = set()
        self._values: dict[str, float] = {}
        self._lost: dict[str, float] = {}

    def load(self) -> None:
        """Read what an earlier hub wrote."""
        try:
            kept = json.loads(self.path.read_text(encoding="utf-8"))
            merged, values, lost = set(kept["merged"]), dict(kept["values"]), dict(kept["lost"])
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError) as error:
            set_aside(self.path, error)
            return
        self.merged, self._values, self._lost = merged, values, lost

    def add(self, reader: _Reader, wall_s: float) -> bool:
        """Take the counters of a dead process in; whether they are on disk, so its file may go."""
        counted = Numbers(dict(self._values))
        reader.give_counters(counted)
        lost = {key: at for key, at in self._lost.items() if wall_s - at < LOST_S}
        if CLOSED not in reader.values:
            lost.update({key: wall_s for key in reader.values if _is_up(key)})
        there = {path.name for path in self.path.parent.glob(f"*{SUFFIX}")}
        merged = (self.merged & there) | {reader.path.name}
        kept = {"merged": sorted(merged), "values": counted.values, "lost": lost}
        part = self.path.with_suffix(".part")
        try:
            with part.open("w", encoding="utf-8") as file:
                json.dump(kept, file)
                file.flush()
                os.fsync(file.fileno())
            part.replace(self.path)
        except OSError as error:
            _LOG.error("metrics: %s could not be written: %s; free the disk", self.path, error)
            return False
        self.merged, self._values, self._lost = merged, counted.values, lost
        return True

    def give(self, numbers: Numbers, wall_s: float) -> None:
        """What the dead counted; 0 for a replica that was lost within the last five minutes."""
        for key, value in self._values.items():
            numbers.put(key, value)
        for key, at_s in self._lost.items():
            if wall_s - at_s < LOST_S:
                numbers.put(key, 0.0)


def set_aside(path: Path, error: Exception) -> None:
    """A file that nobody can read (another version's, a broken disk's) is kept and not read again.

    The hub goes on without it: of all counters, those in it are lost to the page, not to a person.
    """
    aside = path.with_name(f"{path.name}.unreadable")
    number = 1
    while aside.exists():
        number += 1
        aside = path.with_name(f"{path.name}.unreadable-{number}")
    with contextlib.suppress(OSError):
        path.replace(aside)
    _LOG.error(
        "metrics: %s cannot be read (%r), expected this version's form; see %s", path, error, aside
    )


def _mapped(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _is_up(key: str) -> bool:
    series = series_of(key)
    return series is not None and series.metric is REPLICA_UP


def _delete(path: Path) -> None:
    for one in (path, path.with_suffix(EXEMPLARS), path.with_suffix(".part")):
        one.unlink(missing_ok=True)
