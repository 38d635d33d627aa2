"""The hub of a node: a detached actor that serves the node's metrics and gathers its failures."""

import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import astuple
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tocsin.ray_jobs.board import BOARD, NAMESPACE
from tocsin.ray_jobs.exposition import page
from tocsin.ray_jobs.head import head_node
from tocsin.ray_jobs.node_page import NodePage
from tocsin.ray_jobs.numbers import Numbers
from tocsin.ray_jobs.places import LINGER_S, METRICS_PORT, metrics_folder
from tocsin.ray_jobs.ticks import Tick

_LOG = logging.getLogger("tocsin.metrics")

HUB = "hub:"
TARGETS = "targets.json"
_LOOPBACK = "127.0.0.1"
_LOOK_S = 0.05
"""How often the rings are looked at: what a failure in another process waits at most."""
_BEAT_S = 1.0
_MERGE_S = 2.0
_BOARD_S = 5.0
_PORT_TRIES, _PORT_TRY_S = 10, 0.1
"""The hub of an application that was just taken down may still be letting its port go."""


class Hub:
    """Serves `/metrics`, `/sd` and `/healthz`; files stay when it dies, and a new one reads them.

    Ray takes a node for busy as long as any actor is on it: off the head, a hub whose node has been
    without a serving process for a while goes, so that the autoscaler can take the node away.

    Args:
        node: id of the node it was put on.
    """

    def __init__(self, node: str, folder: Path | None = None) -> None:
        """Listen, and begin to gather."""
        self._node = node
        self._page = NodePage(folder)
        self._targets_file = metrics_folder(folder) / TARGETS
        self._hubs: dict[str, dict[str, Any]] = {}
        self._board: Any = None
        self._unsent: list[Tick] = []
        self._beat_s = self._merge_s = float("-inf")
        self._linger = Linger(float(os.environ.get("TOCSIN_HUB_LINGER_S") or LINGER_S))
        self._server = listen(self._answer)
        host, port = self._server.server_address[:2]
        self._address = f"{host!s}:{port}"
        for target in (self._server.serve_forever, self._gather_for_ever):
            threading.Thread(target=target, daemon=True).start()

    def address(self) -> str:
        """Host and port of its pages."""
        return self._address

    def pid(self) -> int:
        """Of its process."""
        return os.getpid()

    def numbers(self) -> Numbers:
        """All series of the node, for whoever adds nodes up."""
        return self._page.numbers()

    def page(self, accept: str = "") -> tuple[bytes, str]:
        """The node's page and its content type."""
        return page(self._page.numbers(), accept)

    def targets(self) -> list[dict[str, Any]]:
        """All hubs of the cluster as Prometheus' HTTP service discovery wants them.

        The node is a meta label: as a lasting one, a new node would be a new series of everything.
        In a drill every target says so, and with it every alert that comes of it.
        """
        hubs = self._hubs or {self._node: self._said()}
        targets = []
        for node, hub in sorted(hubs.items()):
            labels = {"__meta_tocsin_node": node}
            if hub["drill"]:
                labels["chaos"] = "true"
            targets.append({"targets": [hub["address"]], "labels": labels})
        return targets

    def _said(self) -> dict[str, Any]:
        drill = os.environ.get("TOCSIN_DRILL") == "1"
        return {"address": self._address, "drill": drill, "pid": os.getpid()}

    def _answer(self, path: str, accept: str) -> tuple[int, bytes, str]:
        if path == "/metrics":
            return 200, *self.page(accept)
        if path == "/sd":
            return 200, json.dumps(self.targets()).encode(), "application/json"
        if path == "/healthz":
            return 200, b"ok\n", "text/plain; charset=utf-8"
        return 404, b"found no such page, expected /metrics, /sd or /healthz\n", "text/plain"

    def _gather_for_ever(self) -> None:
        while True:
            try:
                self._gather()
                time.sleep(_LOOK_S)
            except Exception:  # noqa: BLE001 - the node's only such thread outlives a bad file
                _LOG.exception("hub: gathering failed, expected readable files; tried again")
                time.sleep(_BEAT_S)

    def _gather(self) -> None:
        """One look at the rings; now and then a word to the board and a merge."""
        now_s = time.monotonic()
        self._unsent += self._page.ticks()
        if self._unsent or now_s - self._beat_s > _BEAT_S:
            self._beat_s = now_s
            self._tell_board()
        if now_s - self._merge_s > _MERGE_S:  # the dead are archived though nobody scrapes
            self._merge_s = now_s
            self._page.numbers()
            if self._linger.over(now_s, self._page.living()):
                self._leave()

    def _leave(self) -> None:
        """End this actor for good; the next process on this node makes another."""
        head = head_node()
        if head is None or head["NodeID"] == self._node:
            return
        _LOG.info("hub: nobody has served on this node for a while, it is let go")
        ray.kill(ray.get_actor(f"{HUB}{self._node}", namespace=NAMESPACE))

    def _tell_board(self) -> None:
        """New failures go to the board; what it does not take is told again."""
        try:
            if self._board is None:
                self._board = ray.get_actor(BOARD, namespace=NAMESPACE)
            told = self._board.hub_beat.remote(
                self._node, self._said(), [astuple(tick) for tick in self._unsent]
            )
            answer = ray.get(told, timeout=_BOARD_S)
        except (ValueError, ray.exceptions.RayError):
            self._board = None  # there is none (any more): windows of this node go on
            del self._unsent[:-10_000]
            return
        self._unsent.clear()
        self._page.set_fleet(answer["windows"])
        if answer["hubs"] != self._hubs:
            self._hubs = answer["hubs"]
            part = self._targets_file.with_suffix(f".{os.getpid()}")
            with contextlib.suppress(OSError):  # those who read files only see an older list
                part.write_text(json.dumps(self.targets()), encoding="utf-8")
                part.replace(self._targets_file)


class Linger:
    """Whether a hub has been alone for long enough.

    Args:
        linger_s: how long it stays without a process that counts; 0: for ever.
    """

    def __init__(self, linger_s: float) -> None:
        """It waits for the first one from now on."""
        self._linger_s = linger_s
        self._since_s: float | None = None

    def over(self, now_s: float, living: int) -> bool:
        """Whether the time is over.

        Args:
            living: processes of the node that live and count.
        """
        if living or self._since_s is None:
            self._since_s = now_s
        return 0 < self._linger_s <= now_s - self._since_s


def ensure_hub(node: str) -> Any:
    """The hub of a node, made if there is none; Ray starts it anew when it dies."""
    return (
        ray.remote(Hub)
        .options(
            name=f"{HUB}{node}",
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            max_restarts=-1,
            max_concurrency=8,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
        )
        .remote(node)
    )


def forget_hubs() -> None:
    """End the hubs of all nodes; their files stay."""
    for actor in ray.util.list_named_actors(all_namespaces=True):
        if actor["namespace"] == NAMESPACE and actor["name"].startswith(HUB):
            with contextlib.suppress(ValueError):
                ray.kill(ray.get_actor(actor["name"], namespace=NAMESPACE))


Answer = Callable[[str, str], tuple[int, bytes, str]]


def listen(answer: Answer, settings: Mapping[str, str] = os.environ) -> ThreadingHTTPServer:
    """A small server on the port asked for, or on any where that one is taken.

    Loopback, unless `TOCSIN_METRICS_HOST` says otherwise; "node" is the node's own address.
    """
    host = settings.get("TOCSIN_METRICS_HOST") or _LOOPBACK
    if host == "node":
        host = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    port = int(settings.get("TOCSIN_METRICS_PORT") or METRICS_PORT)
    handler = partial(_Handler, answer)
    for _ in range(_PORT_TRIES):
        with contextlib.suppress(OSError):
            return _Server((host, port), handler)
        time.sleep(_PORT_TRY_S)
    _LOG.warning("hub: %s:%d is taken, expected a free port; any free one is used", host, port)
    return _Server((host, 0), handler)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True


class _Handler(BaseHTTPRequestHandler):
    """Hands a GET to the hub."""

    protocol_version = "HTTP/1.1"
    timeout = 10.0

    def __init__(self, answer: Answer, *args: Any) -> None:
        self._answer = answer
        super().__init__(*args)

    def do_GET(self) -> None:
        """Answer one request."""
        path = self.path.partition("?")[0]
        try:
            status, body, content_type = self._answer(path, self.headers.get("Accept", ""))
        except Exception as error:  # noqa: BLE001 - a process edge: the scraper is told
            status, content_type = 500, "text/plain; charset=utf-8"
            body = f"hub: the page could not be made: {type(error).__name__}: {error}\n".encode()
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Scrapes are not worth a line each."""
