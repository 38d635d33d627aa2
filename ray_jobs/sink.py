"""Where a run's own alerts and spans go: a receiver that takes them, or refuses for a while."""

import json
import threading
import time
from collections.abc import Mapping
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tocsin.chaos.side import ALERTS, SPANS

_PATHS = {"/api/v2/alerts": ALERTS, "/v1/traces": SPANS}
_HOST = "127.0.0.1"


class Sink:
    """Implements `chaos.side.Receivers` over HTTP on loopback, as Alertmanager and a collector do.

    Attributes:
        url: of both.
    """

    def __init__(self) -> None:
        """Listen; everything is taken."""
        self._lock = threading.Lock()
        self._until_s: dict[str, float] = {}
        self._hangs: dict[str, bool] = {}
        self._refused: dict[str, int] = {ALERTS: 0, SPANS: 0}
        self._owed: set[str] = set()
        self._server = ThreadingHTTPServer((_HOST, 0), partial(_Handler, self))
        self._server.daemon_threads = True
        self.url = f"http://{_HOST}:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True).start()

    def environment(self) -> Mapping[str, str]:
        """What tells the processes of an application to send here, each span that they make."""
        return {
            "TOCSIN_ALERTMANAGER_URL": self.url,
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.url,
            "OTEL_TRACES_SAMPLER_ARG": "1.0",
        }

    def refuse(self, what: str, seconds: float, *, hang: bool) -> None:
        """From now on, for so long, answer 500, or not at all."""
        with self._lock:
            self._until_s[what] = time.monotonic() + seconds
            self._hangs[what] = hang

    def take(self, what: str) -> None:
        """Take everything again."""
        with self._lock:
            self._until_s.pop(what, None)

    def refuses(self, what: str) -> bool:
        """Whether it does now."""
        with self._lock:
            return time.monotonic() < self._until_s.get(what, 0.0)

    def refused(self, what: str) -> int:
        """Messages that it refused so far."""
        with self._lock:
            return self._refused[what]

    def owed(self) -> int:
        """Alerts that it refused and has not been sent again since."""
        with self._lock:
            return len(self._owed)

    def close(self) -> None:
        """Listen no more."""
        self._server.shutdown()
        self._server.server_close()

    def hear(self, path: str, body: bytes) -> bool | None:
        """A message comes: whether it is taken; None: it is not answered."""
        what = _PATHS.get(path)
        if what is None:
            return False
        names = _names(body) if what == ALERTS else set()
        if not self.refuses(what):
            with self._lock:
                self._owed -= names
            return True
        with self._lock:
            self._refused[what] += 1
            self._owed |= names
            hangs = self._hangs[what]
        while hangs and self.refuses(what):
            time.sleep(0.05)
        return None if hangs else False


def _names(body: bytes) -> set[str]:
    """The alerts of a push, by their labels."""
    try:
        alerts: Any = json.loads(body)
        return {json.dumps(one["labels"], sort_keys=True) for one in alerts}
    except (ValueError, TypeError, KeyError):
        return set()


class _Handler(BaseHTTPRequestHandler):
    """Hands a POST to the sink."""

    timeout = 30.0

    def __init__(self, sink: Sink, *args: Any) -> None:
        self._sink = sink
        super().__init__(*args)

    def do_POST(self) -> None:
        """Take or refuse one message."""
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        taken = self._sink.hear(self.path, body)
        if taken is None:
            self.close_connection = True
            return
        self.send_response(200 if taken else 500)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Not worth a line each."""
