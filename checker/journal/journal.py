"""The failure journal of one replica: limited lines on disk, all in a ring, snapshots beside."""

import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

from tocsin.checker.counters import Counters
from tocsin.checker.journal import files
from tocsin.checker.journal.archive import Archive
from tocsin.checker.journal.limiter import Admission, Limiter
from tocsin.checker.journal.plain import line_of, plain_json
from tocsin.checker.journal.settings import JournalSettings
from tocsin.checker.journal.sweep import Swept, sweep
from tocsin.checker.journal.writer import Writer
from tocsin.core.clock import Clock, SystemClock

RING_MAX = 512

_LINE_FINDINGS = 8
_RING_FINDINGS = 32
_LONG = ("tensors", "stack", "environment", "shapes", "dtypes")
"""Fields that a line in the middle of a storm goes without."""

_TICK_S = 1.0

_LOG = logging.getLogger("tocsin.checker")


class Journal:
    """Appends failure records; a full disk never stops serving, it is counted and said.

    Lines are written at once, by whoever records the failure, so that a kill right afterwards
    loses none; snapshots, compression and the archive are the writing thread's.

    Attributes:
        bytes: what the folder took up when it was last swept.

    Args:
        path: file of the newest records; None: only the ring in memory.
    """

    def __init__(
        self,
        path: Path | None = None,
        *,
        counters: Counters | None = None,
        settings: JournalSettings | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Make the folder; the file appears with the first record."""
        self.path = path
        self.counters = counters or Counters()
        self.settings = settings or JournalSettings()
        self.bytes = 0
        self._clock: Clock = clock or SystemClock()
        self._ring: deque[dict[str, Any]] = deque(maxlen=RING_MAX)
        self._lock = threading.Lock()
        self._limiter = Limiter(
            lines_max=self.settings.lines_per_s_max,
            window_s=self.settings.merge_s,
            full_share=self.settings.full_share,
        )
        self._owed: list[tuple[float, int, dict[str, Any]]] = []
        self._serial = 0
        self._file: files.LineFile | None = None
        self._archive = Archive(self.settings.archive_url) if self.settings.archive_url else None
        self._swept_s = self._clock.now_ns() / 1e9
        tick = weakref.WeakMethod(self._tick)
        self._writer = Writer(self.settings.queue_bytes_max, lambda: _call(tick), _TICK_S)
        if path is not None:
            self._file = files.LineFile(path, self.settings.rotate_bytes, self.settings.rotate_s)
            # Only the thread's own end: a journal that nobody holds any more has no thread.
            weakref.finalize(self, self._writer.stop)
            self._writer.start()

    def apply(self, settings: JournalSettings) -> None:
        """Go on with other settings; records, rows and snapshots under way are kept."""
        before = self.settings
        if settings == before:
            return
        if settings.archive_url != before.archive_url:
            self._archive = Archive(settings.archive_url) if settings.archive_url else None
        with self._lock:
            self.settings = settings
            self._limiter.limit(
                lines_max=settings.lines_per_s_max,
                window_s=settings.merge_s,
                full_share=settings.full_share,
            )
            if self._file is not None:
                self._file.limit(settings.rotate_bytes, settings.rotate_s)
        self._writer.limit(settings.queue_bytes_max)

    @property
    def folder(self) -> Path | None:
        """Where the files and the snapshots are."""
        return None if self.path is None else self.path.parent

    def admit(
        self,
        operator: str,
        code: str,
        failure_id: str,
        checks: Sequence[tuple[str, str]] = (),
    ) -> Admission:
        """Count a failure and learn what may be said of it; then `write` it with the answer."""
        with self._lock:
            admission = self._limiter.admit(
                operator, code, failure_id, self._now_s(), tuple(checks)
            )
            self._take_rows()
        decision = "sampled_full" if admission.full else "written"
        self.counters.log_records[operator, decision if admission.written else "suppressed"] += 1
        return admission

    def write(self, record: dict[str, Any], admission: Admission | None = None) -> None:
        """Keep one record; NaN and infinities become text.

        Args:
            record: is not changed afterwards.
            admission: the answer of `admit`; None: it is asked here.
        """
        if admission is None:
            admission = self.admit(
                str(record.get("operator", "")),
                str(record.get("code", "")),
                str(record.get("failure_id", "")),
            )
            record = {
                **record,
                "suppressed_since_last": admission.suppressed,
                "sampled_full": admission.full,
            }
        with self._lock:
            self._ring.append(_with_findings(record, _RING_FINDINGS))
            if admission.written:
                self._say(_shortened(record, admission), admission.not_before_s)
            self._say_what_is_due()
        if self._file is not None:
            self._writer.start()

    def snapshot(self, job: Callable[[], None], size_bytes: int) -> bool:
        """Hand the writing of a snapshot to the thread; False, counted, when too much waits."""
        if self.path is None:
            return False
        taken = self._writer.offer(job, size_bytes)
        self.counters.snapshots_dropped += not taken
        return taken

    def recent(self, count: int = RING_MAX) -> list[dict[str, Any]]:
        """The newest records, oldest first; those without a line included."""
        with self._lock:
            kept = list(self._ring)[-count:]
        plain: list[dict[str, Any]] = [plain_json(record) for record in kept]
        return plain

    def find(self, failure_id: str) -> dict[str, Any] | None:
        """The record of a failure, from the ring or the files; None when it is unknown."""
        kept: dict[str, Any]
        for kept in reversed(self.recent()):
            if kept.get("failure_id") == failure_id:
                return kept
        return None if self.path is None else files.find_record(self.path, failure_id)

    def latest(self, operator: str | None = None) -> dict[str, Any] | None:
        """The newest record, of one operator where it is named."""
        kept: dict[str, Any]
        for kept in reversed(self.recent()):
            if operator is None or kept.get("operator") == operator:
                return kept
        return None if self.path is None else files.latest_record(self.path, operator)

    def sweep(self, now_s: float) -> Swept | None:
        """Compress, archive, let go; run by the thread, or by hand.

        Args:
            now_s: wall time, seconds since the epoch.
        """
        if self.path is None or not self.path.parent.is_dir():
            return None
        with self._lock:
            self._guarded(lambda file: file.rotate_if_old(now_s))
        try:
            swept = sweep(self.path.parent, now_s, self.settings, self._archive)
        except OSError as error:
            self.counters.archive_failures += 1
            _LOG.error("journal: %s could not be swept: %s; look at the disk", self.folder, error)
            return None
        if swept is not None:
            self.counters.archive_failures += swept.failures
            self.counters.journal_lost += swept.lost
            self.counters.archive_lag_s, self.bytes = swept.lag_s, swept.bytes
        return swept

    def flush(self) -> None:
        """Write the merged rows of the current minutes and every line that waits for its time."""
        with self._lock:
            self._take_rows(all_rows=True)
            while self._owed:
                self._append(heappop(self._owed)[2])

    def drain(self, timeout_s: float | None = 30.0) -> bool:
        """Wait for the snapshots that are under way; False when the time was too short."""
        return self._writer.drain(timeout_s)

    def close(self) -> None:
        """Flush, finish the snapshots, end the thread; a later record opens it again."""
        self.flush()
        self._writer.drain(5.0)
        self._writer.stop()
        with self._lock:
            if self._file is not None:
                self._file.close()

    def _tick(self) -> None:
        """On the thread, every second: lines that waited for their time, now and then a sweep."""
        now_s = self._now_s()
        with self._lock:
            self._take_rows()
            self._say_what_is_due()
            due = now_s - self._swept_s >= self.settings.sweep_every_s
            if due:
                self._swept_s = now_s
        if due:
            self.sweep(self._clock.wall_s())

    def _now_s(self) -> float:
        return self._clock.now_ns() / 1e9

    def _take_rows(self, *, all_rows: bool = False) -> None:
        """Merged rows whose time is over become lines."""
        now_s, wall_s = self._now_s(), self._clock.wall_s()
        for row, free_s in self._limiter.closed(now_s, all_rows=all_rows):
            since_s, until_s = row.pop("since_s"), row.pop("until_s")
            ago = {"since": wall_s - (now_s - since_s), "until": wall_s - (now_s - until_s)}
            self._say({"ts": files.stamp(wall_s), **row, **_times(ago)}, free_s)

    def _say(self, record: Mapping[str, Any], not_before_s: float) -> None:
        self._serial += 1
        if self._file is None:
            return
        if not self._owed and not_before_s <= self._now_s():
            self._append(record)
        else:
            heappush(self._owed, (not_before_s, self._serial, dict(record)))

    def _say_what_is_due(self) -> None:
        now_s = self._now_s()
        while self._owed and self._owed[0][0] <= now_s:
            self._append(heappop(self._owed)[2])

    def _append(self, record: Mapping[str, Any]) -> None:
        line = line_of(dict(record))
        self._guarded(lambda file: file.append(line, self._clock.wall_s()))

    def _guarded(self, action: Callable[[files.LineFile], object]) -> None:
        """Do something to the file; what the disk refuses is counted."""
        if self._file is None:
            return
        try:
            action(self._file)
        except OSError as error:
            self.counters.journal_dropped += 1
            _LOG.error("journal: %s could not be written: %s; free the disk", self.path, error)


def _times(ago: Mapping[str, float]) -> dict[str, str]:
    return {name: files.stamp(wall_s) for name, wall_s in ago.items()}


def _shortened(record: dict[str, Any], admission: Admission) -> dict[str, Any]:
    """The record as its line says it: the whole once, in a storm only what tells it apart."""
    in_storm = admission.crowded and not admission.full
    record = _with_findings(record, 1 if in_storm else _LINE_FINDINGS)
    if in_storm:
        record = {name: value for name, value in record.items() if name not in _LONG}
    return record


def _with_findings(record: dict[str, Any], count_max: int) -> dict[str, Any]:
    """The record with so many findings at most; one fault may alarm at hundreds of places."""
    findings = record.get("findings") or ()
    if len(findings) <= count_max:
        return record
    return {**record, "findings": findings[:count_max], "findings_total": len(findings)}


def _call(method: "weakref.WeakMethod[Callable[[], None]]") -> None:
    bound = method()
    if bound is not None:
        bound()
