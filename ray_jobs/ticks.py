"""When each operator failed: a ring in a mapped file, which a killed process leaves behind.

Layout: one slot an operator. A slot is a counter of all ticks so far and the wall times of the
last `RING_MAX`; tick number n is at place n modulo `RING_MAX`. The time is written before the
counter, so that a reader never takes a place that is not filled yet.
"""

import json
import mmap
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tocsin.core.clock import Clock
from tocsin.core.ids import new_ulid
from tocsin.core.terms import Operator
from tocsin.ray_jobs.metric_file import started_ticks
from tocsin.ray_jobs.places import metrics_folder

SUFFIX = ".ticks"
RING_MAX = 1024
"""Windows are exact up to so many failures of one operator in one process in two minutes."""
_HEADER_BYTES = 4096
_NUMBER = struct.Struct("<q")
_TIME = struct.Struct("<d")
_SLOT_BYTES = 8 * (RING_MAX + 1)


@dataclass(frozen=True, slots=True)
class Tick:
    """One failure of an operator.

    Attributes:
        source: id of the ring; with `operator` and `serial` it names the tick for good.
        wall_s: wall time, which the nodes of a cluster share as well as their clocks agree.
    """

    source: str
    model: str
    operator: str
    serial: int
    wall_s: float


class TickRing:
    """Written by one process, on the thread that settles its steps."""

    def __init__(self, folder: Path, model: str, clock: Clock) -> None:
        """Make the file and reserve its disk.

        Args:
            folder: the node folder.

        Raises:
            OSError: it could not be made.
        """
        pid = os.getpid()
        stem = f"worker-{pid}-{started_ticks(pid)}"
        path, number = metrics_folder(folder) / f"{stem}{SUFFIX}", 1
        while path.exists():
            number += 1
            path = path.with_name(f"{stem}-{number}{SUFFIX}")
        operators = [str(operator) for operator in Operator]
        # Pids and file names of two machines may be equal; an id is one ring's for good.
        facts = {"id": new_ulid(), "model": model, "operators": operators}
        header = json.dumps(facts).encode()
        size = _HEADER_BYTES + len(operators) * _SLOT_BYTES
        with path.open("x+b") as file:
            os.posix_fallocate(file.fileno(), 0, size)
            self._map = mmap.mmap(file.fileno(), size)
        self._map[: len(header)] = header
        self.path = path
        self._clock = clock
        self._places = {name: _place(index) for index, name in enumerate(operators)}

    def tick(self, operator: str) -> None:
        """One failure now."""
        place = self._places.get(operator)
        if place is None:
            return
        (count,) = _NUMBER.unpack_from(self._map, place)
        _TIME.pack_into(self._map, place + 8 + 8 * (count % RING_MAX), self._clock.wall_s())
        _NUMBER.pack_into(self._map, place, count + 1)


class Unfinished(Exception):  # noqa: N818 - a state, which passes
    """A ring whose writer has not written its first line yet."""


class TickReader:
    """Follows the ring of one process.

    Attributes:
        last_s: wall time of the latest tick that was given, minus infinity before the first.
        taken: whether `news` was asked at least once.
    """

    def __init__(self, path: Path) -> None:
        """Begin with the oldest tick that is still there.

        Raises:
            Unfinished: its writer has only begun.
            ValueError, KeyError, TypeError: the file is of another version, or broken.
        """
        self.path = path
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise Unfinished(path)
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        header = self._map[:_HEADER_BYTES].rstrip(b"\0")
        if not header:
            raise Unfinished(path)
        facts = json.loads(header.decode())
        self._id = str(facts["id"])
        self.model = str(facts["model"])
        self.last_s = float("-inf")
        self.taken = False
        self._operators = [str(operator) for operator in facts["operators"]]
        self._next = [0] * len(self._operators)
        if len(self._map) < _place(len(self._operators)):
            raise ValueError(
                f"{path}: found {len(self._map)} bytes, expected room for its operators"
            )

    def news(self) -> Iterator[Tick]:
        """Ticks since the last call, of each operator in order."""
        for index, operator in enumerate(self._operators):
            place = _place(index)
            (count,) = _NUMBER.unpack_from(self._map, place)
            first = max(self._next[index], count - RING_MAX)
            for serial in range(first, count):
                (wall_s,) = _TIME.unpack_from(self._map, place + 8 + 8 * (serial % RING_MAX))
                self.last_s = max(self.last_s, wall_s)
                yield Tick(self._id, self.model, operator, serial, wall_s)
            self._next[index] = count
        self.taken = True

    def close(self) -> None:
        """Let the file go."""
        self._map.close()


def _place(index: int) -> int:
    return _HEADER_BYTES + index * _SLOT_BYTES
