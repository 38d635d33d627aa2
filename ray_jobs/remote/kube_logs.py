"""A container's log as lines, through restarts of the stream: each line exactly once."""

import re
import subprocess
import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from tocsin.ray_jobs.remote.kubectl import Kubectl

_WINDOW_S = 3.0
"""The server reads `since` by whole seconds, and lines of standard output and standard error may
be in the log a little out of order: the last seconds are asked for again, and told apart."""

_STAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)")


@dataclass(slots=True)
class StampedLines:
    """Takes lines with their time in front, and lets each pass once.

    Attributes:
        since: where a new stream begins; empty: at the beginning.
    """

    emit: Callable[[str], None]
    since: str = ""
    _newest: datetime | None = None
    _recent: deque[tuple[datetime, str]] = field(default_factory=deque)
    _again: Counter[str] = field(default_factory=Counter)

    def restart(self) -> None:
        """A new stream begins: it says the last seconds again."""
        self._again = Counter(line for _, line in self._recent)
        if self._newest is not None:
            self.since = _text(self._newest - timedelta(seconds=_WINDOW_S))

    def take(self, line: str) -> None:
        """Take a line as `kubectl logs --timestamps` prints it, without its end."""
        if self._again[line] > 0:
            self._again[line] -= 1
            return
        stamp, space, text = line.partition(" ")
        at = _time(stamp)
        if at is None or not space:
            self.emit(line)  # kubectl's own words
            return
        self._remember(at, line)
        self.emit(text)

    def _remember(self, at: datetime, line: str) -> None:
        self._newest = at if self._newest is None else max(at, self._newest)
        self._recent.append((at, line))
        oldest = self._newest - timedelta(seconds=2 * _WINDOW_S)
        while self._recent and self._recent[0][0] < oldest:
            self._recent.popleft()


class LogStream:
    """One `kubectl logs` as a thread that hands over lines; ends with the stream."""

    def __init__(
        self, kubectl: Kubectl, pod: str, container: str, lines: StampedLines, *, last: bool
    ) -> None:
        """Start it.

        Args:
            last: there will be no other: a line without an end is a line too.
        """
        lines.restart()
        self._last = last
        words = ["logs", pod, "-c", container, "--timestamps"]
        words += [] if last else ["-f"]
        words += [f"--since-time={lines.since}"] if lines.since else []
        self._process = subprocess.Popen(
            kubectl.words(*words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self.problem = ""
        self._said: list[str] = []
        self._taker = threading.Thread(target=self._take, args=(lines,), daemon=True)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._taker.start()
        self._listener.start()

    def ended(self, timeout_s: float) -> bool:
        """Whether it is over; waits a little for it."""
        self._taker.join(timeout_s)
        if self._taker.is_alive():
            return False
        self._listener.join(timeout_s)
        self._process.wait()
        self.problem = " ".join(" ".join(self._said).split())
        return True

    def close(self) -> None:
        """End it."""
        if self._process.poll() is None:
            self._process.terminate()
        for thread in (self._taker, self._listener):
            thread.join(5.0)
        self._process.wait()
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    def _take(self, lines: StampedLines) -> None:
        for line in self._process.stdout or ():
            if line.endswith("\n") or self._last:  # the next stream says a cut line again, whole
                lines.take(line.rstrip("\n").removesuffix("\r"))

    def _listen(self) -> None:
        self._said.extend(self._process.stderr or ())


def _time(stamp: str) -> datetime | None:
    """RFC 3339 with up to nine digits, of which Python reads six."""
    found = _STAMP.fullmatch(stamp)
    if found is None:
        return None
    whole, digits, zone = found.group(1), (found.group(2) or "0")[:6], found.group(3)
    try:
        return datetime.fromisoformat(f"{whole}.{digits:0<6}{'+00:00' if zone == 'Z' else zone}")
    except ValueError:
        return None


def _text(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
