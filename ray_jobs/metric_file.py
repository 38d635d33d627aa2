"""A process's counters and gauges in a mapped file: written through, so that no kill loses one.

The file outlives its process; the node's hub reads the living and archives the dead. What one
number needs is a key (metric, part, label values) and a double; a histogram has a part for each
bucket and one for its sum.
"""

import json
import logging
import math
import os
import threading
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.utils import floatToGoString

from tocsin.core.clock import Clock, SystemClock
from tocsin.core.metrics import Metric, MetricType
from tocsin.ray_jobs.places import metrics_folder

SUFFIX = ".db"
EXEMPLARS = ".exemplars"
SUM = "sum"
CLOSED = "closed"
"""Key of a file whose process ended well: its replica is not a lost one."""
_FILE_BYTES = 256 << 10
_ROOM_BYTES = 2048  # the longest entry is far shorter
_EXEMPLARS_EVERY_S = 1.0

_LOG = logging.getLogger("tocsin.metrics")


class Bound:
    """One series, looked up once; for hot paths."""

    __slots__ = ("_file", "_key", "value")

    def __init__(self, file: "MetricFile", key: str) -> None:
        """At the value that the file has."""
        self._file = file
        self._key = key
        self.value = file._read(key)

    def inc(self, amount: float = 1.0) -> None:
        """Add to it."""
        self.value = self._file._add(self._key, amount)

    def to(self, value: float) -> None:
        """Bring it to a total or a reading; nothing is written where it stands there already."""
        if value != self.value:
            self.set(value)

    def set(self, value: float) -> None:
        """Write a reading, with its time, even when it has not changed."""
        self.value = value
        self._file._write(self._key, value)


class MetricFile:
    """All that one process counts; safe to use from several threads.

    A disk that is full costs numbers and never the process: pages are reserved before they are
    mapped, because a write to a page that cannot be had would end the process with SIGBUS.

    Attributes:
        path: of the file, None when it could not be made.
    """

    def __init__(self, folder: Path, role: str, *, clock: Clock | None = None) -> None:
        """Make `<folder>/metrics/<role>-<pid>-<start>.db`.

        Args:
            folder: the node folder.
            role: what the process does: worker, gateway, chaos, relay, repro.
        """
        self.path: Path | None = None
        self._clock: Clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._values: Any = None
        self._kept: dict[str, float] = {}
        self._exemplars: dict[str, list[Any]] = {}
        self._exemplars_due_s = 0.0
        self._keys: dict[tuple[str, tuple[str, ...]], str] = {}
        pid = os.getpid()
        path = _free_name(metrics_folder(folder), f"{role}-{pid}-{started_ticks(pid)}")
        try:
            with path.open("xb") as file:
                os.posix_fallocate(file.fileno(), 0, _FILE_BYTES)
            self._values = MmapedDict(str(path))  # type: ignore[no-untyped-call]
            self.path = path
        except OSError as error:
            self._give_up(error)

    def prepare(self, metric: Metric, **values: Iterable[str]) -> None:
        """Put every label set at 0: a rate needs a first value.

        Args:
            values: values of labels that the catalogue does not know beforehand.
        """
        known = {**metric.values, **{name: tuple(one) for name, one in values.items()}}
        missing = [label for label in metric.labels if label not in known]
        if missing:
            raise ValueError(
                f"{metric.name}: found no values of {missing}, expected some for each label"
            )
        for labels in product(*(known[label] for label in metric.labels)):
            self.touch(metric, labels)

    def touch(self, metric: Metric, labels: tuple[str, ...]) -> None:
        """Put one label set at 0, or leave it where it is."""
        for key in self._all_keys(metric, labels):
            self._read(key)

    def inc(self, metric: Metric, labels: tuple[str, ...] = (), amount: float = 1.0) -> None:
        """Add to a counter (or a gauge)."""
        self._add(self._key(metric, labels), amount)

    def set(self, metric: Metric, labels: tuple[str, ...], value: float) -> None:
        """Set a gauge."""
        self._write(self._key(metric, labels), value)

    def observe(
        self,
        metric: Metric,
        labels: tuple[str, ...],
        value: float,
        exemplar: Mapping[str, str] | None = None,
    ) -> None:
        """Take one value into a histogram.

        Args:
            exemplar: at most 128 characters of names and values, such as a trace id.
        """
        edge = bisect_left(metric.buckets, value)
        part = edge_text(metric.buckets[edge] if edge < len(metric.buckets) else math.inf)
        # The sum first: a kill in between leaves it a little high, never a count without a value.
        self._add(metric_key(metric.name, SUM, labels), value)
        key = metric_key(metric.name, part, labels)
        if not self._add(key, 0.0):  # a new label set has all its buckets, or it is none
            self.touch(metric, labels)
        self._add(key, 1.0)
        if exemplar:
            with self._lock:
                self._exemplars[key] = [dict(exemplar), value, self._clock.wall_s()]

    def bind(self, metric: Metric, labels: tuple[str, ...] = ()) -> Bound:
        """One counter or gauge for a hot path."""
        return Bound(self, self._key(metric, labels))

    def flush(self) -> None:
        """Write the newest exemplars, at most once a second; the numbers are written already."""
        now_s = self._clock.now_ns() / 1e9
        if not self._exemplars or now_s < self._exemplars_due_s or self.path is None:
            return
        self._exemplars_due_s = now_s + _EXEMPLARS_EVERY_S
        with self._lock:
            text = json.dumps(self._exemplars)
        part = self.path.with_suffix(".part")
        try:
            part.write_text(text, encoding="utf-8")
            part.replace(self.path.with_suffix(EXEMPLARS))
        except OSError as error:
            _LOG.error("metrics: exemplars could not be written: %s; free the disk", error)

    def close(self) -> None:
        """The process ends well: its counters stay, its gauges go, its replica is not lost."""
        if self._values is not None:
            self._write(CLOSED, 1.0)
            with self._lock:
                self._values.close()
                self._values = None

    def __del__(self) -> None:
        """Let the file go; that it ended well is only said by `close`."""
        values = getattr(self, "_values", None)
        if values is not None:
            values.close()

    def _all_keys(self, metric: Metric, labels: tuple[str, ...]) -> list[str]:
        if metric.type is not MetricType.HISTOGRAM:
            return [self._key(metric, labels)]
        parts = [SUM, *(edge_text(edge) for edge in (*metric.buckets, math.inf))]
        return [metric_key(metric.name, part, labels) for part in parts]

    def _key(self, metric: Metric, labels: tuple[str, ...]) -> str:
        key = self._keys.get((metric.name, labels))
        if key is None:
            if len(labels) != len(metric.labels):
                raise ValueError(
                    f"{metric.name}: found {len(labels)} label values {labels}, expected one for "
                    f"each of {metric.labels}"
                )
            key = self._keys[metric.name, labels] = metric_key(metric.name, "", labels)
        return key

    def _read(self, key: str) -> float:
        with self._lock:
            return self._value(key)

    def _add(self, key: str, amount: float) -> float:
        with self._lock:
            value = self._value(key) + amount
            if amount:
                self._put(key, value)
            return value

    def _write(self, key: str, value: float) -> None:
        with self._lock:
            self._value(key)  # makes room for a new key
            self._put(key, value)

    def _value(self, key: str) -> float:
        """Value of a key, which exists from now on; the lock is held."""
        kept = self._kept.get(key)
        if kept is None:
            kept = 0.0
            if self._values is not None and self._has_room():
                kept = float(self._values.read_value(key)[0])
            self._kept[key] = kept
        return kept

    def _put(self, key: str, value: float) -> None:
        self._kept[key] = value
        if self._values is not None:
            self._values.write_value(key, value, self._clock.wall_s())

    def _has_room(self) -> bool:
        """Whether one more key fits; reserves disk for the file's next size if not."""
        values = self._values
        if values._used + _ROOM_BYTES <= values._capacity:
            return True
        try:
            os.posix_fallocate(values._f.fileno(), 0, 2 * values._capacity)
        except OSError as error:
            self._give_up(error)
            return False
        return True

    def _give_up(self, error: OSError) -> None:
        """Count on in memory only; what is in the file stays there."""
        self._values = None
        _LOG.error("metrics: %s: numbers of this process stay in it; free the disk", error)


def metric_key(name: str, part: str, labels: tuple[str, ...]) -> str:
    """Key of one number in a file; `part` is empty, "sum", or the upper edge of a bucket."""
    return json.dumps([name, part, *labels])


def edge_text(edge: float) -> str:
    """A bucket's upper edge as the page spells it."""
    return str(floatToGoString(edge))  # type: ignore[no-untyped-call]


def started_ticks(pid: int) -> int:
    """When a process of this machine was started, in ticks since boot; -1 when there is none.

    With the pid it names a process for good: a pid alone is given again.
    """
    fields = _stat(pid)
    return int(fields[19]) if fields else -1


def state_letter(pid: int) -> str:
    """State of a process of this machine (proc(5)), empty when there is none."""
    fields = _stat(pid)
    return fields[0] if fields else ""


def _stat(pid: int) -> list[str]:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _free_name(folder: Path, stem: str) -> Path:
    """The file's name; a process that opens a second file of one role gets a number behind it."""
    path, number = folder / f"{stem}{SUFFIX}", 1
    while path.exists():
        number += 1
        path = folder / f"{stem}-{number}{SUFFIX}"
    return path
