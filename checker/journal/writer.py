"""A thread that writes what may take long; whoever hands it work never waits for it."""

import logging
import threading
from collections import deque
from collections.abc import Callable

JOBS_MAX = 64

_LOG = logging.getLogger("tocsin.checker")


class Writer:
    """One daemon thread with a bounded queue.

    Args:
        bytes_max: memory that may wait in jobs; one job is taken whatever its size.
        idle: called every `every_s` seconds, on the thread.
    """

    def __init__(self, bytes_max: int, idle: Callable[[], None], every_s: float) -> None:
        """The thread starts with the first job, or by `start`."""
        self._bytes_max = bytes_max
        self._idle = idle
        self._every_s = every_s
        self._jobs: deque[tuple[Callable[[], None], int]] = deque()
        self._bytes = 0
        self._busy = False
        self._stopped = False
        self._changed = threading.Condition()
        self._runs = False

    def limit(self, bytes_max: int) -> None:
        """Another bound for what may wait; what waits already is kept."""
        self._bytes_max = bytes_max

    def offer(self, job: Callable[[], None], size_bytes: int = 0) -> bool:
        """Hand over a job; False, at once, when too much waits already."""
        with self._changed:
            full = len(self._jobs) >= JOBS_MAX or self._bytes + size_bytes > self._bytes_max
            if self._jobs and full:
                return False
            self._jobs.append((job, size_bytes))
            self._bytes += size_bytes
            self._changed.notify_all()
        self.start()
        return True

    def start(self) -> None:
        """Run the thread if it does not run; a stop that is not over yet is taken back."""
        with self._changed:
            self._stopped = False
            if self._runs:
                return
            self._runs = True
            threading.Thread(target=self._run_for_ever, name="tocsin-journal", daemon=True).start()

    def drain(self, timeout_s: float | None = None) -> bool:
        """Wait until nothing waits; for tests and for the end, never for a step."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._jobs and not self._busy, timeout_s)

    def stop(self) -> None:
        """Finish what waits and end the thread."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _run_for_ever(self) -> None:
        while True:
            with self._changed:
                if not self._jobs and not self._stopped:
                    self._changed.wait(self._every_s)
                if not self._jobs and self._stopped:
                    self._runs = False
                    return
                job, size_bytes = self._jobs.popleft() if self._jobs else (self._idle, 0)
                self._busy = True
            try:
                job()
            except Exception:  # noqa: BLE001 - one job must not take the others along
                _LOG.exception("journal: a job of the writing thread failed")
            with self._changed:
                self._bytes -= size_bytes
                self._busy = False
                self._changed.notify_all()
