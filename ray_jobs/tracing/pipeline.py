"""From the request's path to files and receivers: one append, then all else on other threads."""

import atexit
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from opentelemetry.sdk.trace import ReadableSpan

from tocsin.core.clock import Clock, SystemClock
from tocsin.ray_jobs.tracing.assemble import Assembler
from tocsin.ray_jobs.tracing.context import HeadSampler
from tocsin.ray_jobs.tracing.delivery import Delivery
from tocsin.ray_jobs.tracing.otlp import OtlpDelivery, otlp_delivery
from tocsin.ray_jobs.tracing.record import SpanRecord
from tocsin.ray_jobs.tracing.settings import TraceSettings
from tocsin.ray_jobs.tracing.spans_file import SpanFile

KEPT_PER_S = 10
"""Requests whose trace a serving process keeps in a second, like the lines of the journal: in a
storm the hundredth trace says nothing that the tenth did not, and would fill the disk."""
REQUESTS_MAX = 128
"""Kept requests that wait for the disk: ten megabytes at most, when each is full of events."""
_CLOSE_S = 2.0

_Kept = tuple[Sequence[SpanRecord], int]


class Tracing:
    """Traces of one process.

    Args:
        folder: of span files (`<node folder>/spans`).
        role: what the process is (`gateway`, `worker`, `nemesis`).
        replica: its id, empty where there is one of it.
        settings: None: as the environment says.
        otlp: the way to a receiver; None: as the settings say.
        per_s: requests kept in any second, the others are counted; None: all.
    """

    def __init__(
        self,
        folder: Path,
        role: str,
        *,
        replica: str = "",
        settings: TraceSettings | None = None,
        clock: Clock | None = None,
        otlp: OtlpDelivery | None = None,
        per_s: int | None = None,
    ) -> None:
        """Nothing is written, and no thread runs, before the first kept request."""
        self.settings = settings or TraceSettings.from_environment()
        self.clock = clock or SystemClock()
        self.head = HeadSampler(self.settings.ratio)
        self._file = SpanFile(folder, role)
        self._local: Delivery[_Kept] = Delivery(
            self._write, name="spans-file", items_max=REQUESTS_MAX
        )
        wanted = self.settings.enabled and self.settings.otlp
        self._otlp = otlp or (otlp_delivery() if wanted else None)
        self._assembler = Assembler(role, replica, self._assembled)
        self._batch: list[ReadableSpan] = []
        self._written = self._failed = self._limited = 0
        self._per_s = per_s
        self._lately_ns: deque[int] = deque()
        atexit.register(self.close)

    def export(self, records: Sequence[SpanRecord]) -> None:
        """Keep the spans of one request; returns at once."""
        if self.settings.enabled and self._within_the_rate():
            epoch_ns = int(self.clock.wall_s() * 1e9) - self.clock.now_ns()
            self._local.offer((records, epoch_ns))

    def counts(self) -> dict[str, int]:
        """What became of spans so far; `requests_dropped`: kept, but the queue was full;
        `requests_limited`: more than are kept in one second.
        """
        counts = {
            "spans_written": self._written,
            "spans_failed": self._failed,
            "requests_dropped": self._local.dropped,
            "requests_limited": self._limited,
        }
        if self._otlp is not None:
            counts["otlp_sent"] = self._otlp.delivered
            counts["otlp_failed"] = self._otlp.failed
            counts["otlp_dropped"] = self._otlp.dropped
        return counts

    def flush(self, timeout_s: float = _CLOSE_S) -> bool:
        """Wait until the files are written; whether that came in time."""
        return self._local.flush(timeout_s)

    def close(self, timeout_s: float = _CLOSE_S) -> None:
        """Write and send what waits, for no longer than this."""
        atexit.unregister(self.close)
        until_ns = self.clock.now_ns() + int(timeout_s * 1e9)
        self._local.close(timeout_s)
        if self._otlp is not None:
            self._otlp.close(max((until_ns - self.clock.now_ns()) / 1e9, 0.0))

    def _within_the_rate(self) -> bool:
        if self._per_s is None:
            return True
        now_ns = self.clock.now_ns()
        while self._lately_ns and now_ns - self._lately_ns[0] >= 1_000_000_000:
            self._lately_ns.popleft()
        if len(self._lately_ns) >= self._per_s:
            self._limited += 1
            return False
        self._lately_ns.append(now_ns)
        return True

    def _write(self, kept: Sequence[_Kept]) -> bool:
        """Spans of some requests, into the file and on their way; on the delivery's thread."""
        for records, epoch_ns in kept:
            self._assembler.assemble(records, epoch_ns)
        spans, self._batch = self._batch, []
        if not spans:
            return True
        # The receiver's queue first: a disk that hangs must not keep spans from it.
        if self._otlp is not None:
            for span in spans:
                self._otlp.offer(span)
        if self._file.write(spans):
            self._written += len(spans)
        else:
            self._failed += len(spans)
        return True  # what the disk did is counted by spans; the receiver need not wait for it

    def _assembled(self, span: ReadableSpan) -> None:
        self._batch.append(span)
