"""A chaos run as a mark on Grafana's dashboards, from its start to its end.

Whatever Grafana does, the run goes on: the calls are made aside, each has seconds, and what cannot
be told is said once.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tocsin.core.clock import Clock, SystemClock
from tocsin.core.errors import TocsinError
from tocsin.dashboards.grafana.client import GrafanaApi, GrafanaServer
from tocsin.dashboards.grafana.files import TAG_CHAOS
from tocsin.dashboards.relay.secret import read_secret

URL, TOKEN_FILE = "TOCSIN_GRAFANA_URL", "TOCSIN_GRAFANA_TOKEN_FILE"
_TIMEOUT_S = 2.0


class RunNote:
    """One mark: `start` sets it, `stop` makes it a span."""

    def __init__(
        self,
        connect: Callable[[], GrafanaServer],
        text: str,
        tags: tuple[str, ...] = (),
        *,
        clock: Clock | None = None,
        say: Callable[[str], None] = lambda _line: None,
    ) -> None:
        """Keeps what is needed; nothing is called yet.

        Args:
            connect: makes the server; its errors are said, not raised.
            tags: besides the one by which dashboards find the marks.
            say: hears why Grafana could not be told, once.
        """
        self._connect, self._text, self._tags = connect, text, (TAG_CHAOS, *tags)
        self._clock, self._say = clock or SystemClock(), say
        self._start_ms, self._id = 0, 0
        self._server: GrafanaServer | None = None
        self._thread: threading.Thread | None = None
        self._failed = False

    def start(self) -> None:
        """Set the mark; returns at once."""
        self._start_ms = self._now_ms()
        self._thread = self._aside(self._set)

    def stop(self) -> None:
        """Make the mark a span that ends now; takes seconds at most, however slow the server is."""
        end_ms = self._now_ms()
        if self._thread is None:
            return
        self._thread.join(2 * _TIMEOUT_S)
        if self._thread.is_alive():
            self._fail("grafana: no answer yet when the run ended; its start may be marked")
        elif not self._failed:
            self._aside(lambda: self._end(end_ms)).join(2 * _TIMEOUT_S)
        self._thread = None

    def _set(self) -> None:
        self._server = self._connect()
        note = {"time": self._start_ms, "tags": list(self._tags), "text": self._text}
        self._id = self._server.annotate(note)

    def _end(self, end_ms: int) -> None:
        if self._server is not None and self._id:
            self._server.end_annotation(self._id, end_ms)

    def _aside(self, call: Callable[[], None]) -> threading.Thread:
        def guarded() -> None:
            try:
                call()
            except TocsinError as error:
                self._fail(str(error))

        thread = threading.Thread(target=guarded, name="grafana-note", daemon=True)
        thread.start()
        return thread

    def _fail(self, line: str) -> None:
        if not self._failed:
            self._failed = True
            self._say(f"{line} (the run goes on)")

    def _now_ms(self) -> int:
        return round(self._clock.wall_s() * 1000)


@contextmanager
def annotated(
    text: str, tags: tuple[str, ...] = (), say: Callable[[str], None] = lambda _line: None
) -> Iterator[None]:
    """Marks the time of the block in Grafana, where TOCSIN_GRAFANA_URL names a server."""
    url = os.environ.get(URL, "")
    if not url:
        yield
        return
    note = RunNote(lambda: _connect(url), text, tags, say=say)
    note.start()
    try:
        yield
    finally:
        note.stop()


def _connect(url: str) -> GrafanaServer:
    token = read_secret(Path(os.environ.get(TOKEN_FILE, "")), TOKEN_FILE)
    return GrafanaApi(url, token, timeout_s=_TIMEOUT_S)
