"""Everything a hub knows of its node: files, journal and windows, put together for one page."""

import contextlib
import itertools
import threading
from collections.abc import Iterable
from pathlib import Path

from tocsin.checker.window import HOLD_S
from tocsin.core.clock import Clock, SystemClock
from tocsin.core.metrics import DELIVERIES, FAILURES_WINDOW, HUB_SERIES, JOURNAL_BYTES, REPRO_RUNS
from tocsin.core.terms import Operator
from tocsin.ray_jobs.exposition import sample_count
from tocsin.ray_jobs.fleet_window import FleetWindow
from tocsin.ray_jobs.journal_tail import JournalTail
from tocsin.ray_jobs.metric_file import metric_key, started_ticks
from tocsin.ray_jobs.node_files import NodeFiles, set_aside
from tocsin.ray_jobs.numbers import Numbers
from tocsin.ray_jobs.places import journal_folder, metrics_folder, node_folder
from tocsin.ray_jobs.ticks import SUFFIX, Tick, TickReader, Unfinished

_DISK_EVERY_S = 10.0
_HALF_WRITTEN_S = 10.0
# Their writers, the relay and `tocsin reproduce`, come late or never: without a series at 0 the
# first dead letter would be a counter born at 1, in which no rate sees a change.
_FROM_THE_START = (DELIVERIES, REPRO_RUNS)


class NodePage:
    """The numbers of one node; safe to ask from several threads.

    Args:
        folder: the node folder.
    """

    def __init__(self, folder: Path | None = None, clock: Clock | None = None) -> None:
        """Nothing is read yet."""
        folder = node_folder(folder)
        self._clock: Clock = clock or SystemClock()
        self._files = NodeFiles(folder, self._clock)
        self._journal = JournalTail(journal_folder(folder))
        self._folder = metrics_folder(folder)
        self._rings: dict[str, TickReader] = {}
        self._models: set[str] = set()
        self._window = FleetWindow()
        self._fleet: dict[tuple[str, str], int] = {}
        self._lock = threading.Lock()
        self._disk = (float("-inf"), 0)

    def numbers(self) -> Numbers:
        """All series of this node; those of the fleet where this hub was told of them."""
        with self._lock:
            numbers = self._files.read()
            wall_s = self._clock.wall_s()
            if self._files.holds():
                for key, exemplar in self._journal.exemplars().items():
                    if key in numbers.values:
                        numbers.exemplars[key] = exemplar
                numbers.put(metric_key(JOURNAL_BYTES.name, "", ()), float(self._journal_bytes()))
                for metric in _FROM_THE_START:
                    for labels in itertools.product(*(metric.values[n] for n in metric.labels)):
                        numbers.put(metric_key(metric.name, "", labels), 0.0)
                self._put_windows(numbers, "node", self._window.worst(wall_s))
            self._put_windows(numbers, "fleet", self._fleet)
            key = metric_key(HUB_SERIES.name, "", ())
            numbers.put(key, 0.0)
            numbers.values[key] = float(sample_count(numbers))
            return numbers

    def ticks(self) -> list[Tick]:
        """Failures since the last call, of all processes of the node, the dead ones' included."""
        with self._lock:
            if not self._files.holds():
                return []
            wall_s = self._clock.wall_s()
            news = [tick for ring in self._follow(wall_s) for tick in ring.news()]
            self._window.take(news, wall_s)
            return news

    def set_fleet(self, worst: Iterable[tuple[str, str, int]]) -> None:
        """What the board says of the fleet: model, operator, failures in the worst minute."""
        self._fleet = {(model, operator): count for model, operator, count in worst}

    def living(self) -> int:
        """Processes of the node that lived and counted when the numbers were read last."""
        return self._files.living

    def close(self) -> None:
        """Let the next hub read."""
        self._files.close()

    def _follow(self, wall_s: float) -> list[TickReader]:
        """Rings of the node; one whose process and whose failures are long gone is deleted."""
        for path in self._folder.glob(f"*{SUFFIX}"):
            if path.name not in self._rings:
                try:
                    ring = TickReader(path)
                except Unfinished:
                    continue  # next time
                except (OSError, ValueError, KeyError, TypeError) as error:
                    if _age_s(path, wall_s) > _HALF_WRITTEN_S:  # else its writer may be at it
                        set_aside(path, error)
                    continue
                self._rings[path.name] = ring
                self._models.add(ring.model)
        for name, ring in list(self._rings.items()):
            # Its last failures are taken before it may go.
            if ring.last_s <= wall_s - HOLD_S and ring.taken and not _alive(ring.path):
                ring.close()
                ring.path.unlink(missing_ok=True)
                del self._rings[name]
        return list(self._rings.values())

    def _put_windows(self, numbers: Numbers, scope: str, worst: dict[tuple[str, str], int]) -> None:
        for model in self._models or {model for model, _ in worst}:
            for operator in Operator:
                count = worst.get((model, str(operator)), 0)
                labels = (model, str(operator), scope)
                numbers.put(metric_key(FAILURES_WINDOW.name, "", labels), float(count))

    def _journal_bytes(self) -> int:
        now_s = self._clock.now_ns() / 1e9
        if now_s - self._disk[0] > _DISK_EVERY_S:
            with contextlib.suppress(OSError):  # a file went while it was looked at
                self._disk = (now_s, self._journal.bytes())
        return self._disk[1]


def _age_s(path: Path, wall_s: float) -> float:
    """Time since a file was last written, 0 when it is gone."""
    try:
        return wall_s - path.stat().st_mtime
    except OSError:
        return 0.0


def _alive(path: Path) -> bool:
    _, pid, start, *_ = path.stem.split("-")
    return started_ticks(int(pid)) == int(start)
