"""The driver's own numbers on a small page, where Prometheus comes to its pod for them."""

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tocsin.ray_jobs.exposition import page
from tocsin.ray_jobs.hub import listen
from tocsin.ray_jobs.node_page import NodePage
from tocsin.ray_jobs.places import is_read

HOST_ENV = "TOCSIN_METRICS_HOST"


@contextmanager
def driver_page(folder: Path, settings: Mapping[str, str] = os.environ) -> Iterator[str]:
    """Serve `/metrics` and `/healthz` of a node folder as long as the block lasts.

    Only where TOCSIN_METRICS_HOST says so: on one machine the node's hub serves already.

    Yields:
        host:port of the page; empty: there is none.
    """
    if not settings.get(HOST_ENV):
        yield ""
        return
    node = NodePage(folder)

    def answer(path: str, accept: str) -> tuple[int, bytes, str]:
        if path == "/metrics":
            return 200, *page(node.numbers(), accept)
        if path == "/healthz":
            return 200, b"ok\n", "text/plain; charset=utf-8"
        return 404, b"found no such page, expected /metrics or /healthz\n", "text/plain"

    server = listen(answer, settings)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        host, port = server.server_address[:2]
        yield f"{host!s}:{port}"
    finally:
        server.shutdown()
        server.server_close()
        node.close()


def read_folder(page: str, own: Path, node: Path) -> Path:
    """Where somebody reads the driver's numbers.

    Args:
        page: address of its own page, if it has one.
        own: the run's folder, which that page shows.
        node: the folder of this node; a driver in the head's pod is a process of a node that
            serves, whose hub holds the port and shows what is there.
    """
    return node if not page and is_read(node) else own
