"""Prometheus and Alertmanager for the length of a chaos run, with generated rules and routes."""

import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tocsin.core.errors import SpecError
from tocsin.dashboards.render.files import ALERTMANAGER, PROMETHEUS, write
from tocsin.dashboards.render.options import RenderOptions
from tocsin.ray_jobs.monitor import HOST, Monitor

URL = "TOCSIN_ALERTMANAGER_URL"
_EVERY_S = 1
"""Between scrapes and between evaluations: a run lasts for a minute or two."""


@contextmanager
def own_alerting(
    folder: Path, gateway_port: int, say: Callable[[str], None]
) -> Iterator[Mapping[str, str]]:
    """Start both on loopback, and end them with the block; no human being is told.

    Args:
        folder: of the run, for their files; it goes when the run is over.

    Yields:
        The environment by which what is served next is scraped and pushes.

    Raises:
        SpecError: an Alertmanager is named already.
        EnvironmentFault: a program is missing, or did not become ready.
    """
    if os.environ.get(URL):
        raise SpecError(
            f"chaos run: --alerts starts an Alertmanager of its own, and {URL} names another one; "
            "leave one of the two out"
        )
    hub, prometheus, alertmanager = _free_ports(3)
    options = RenderOptions(
        gateway_url=f"http://{HOST}:{gateway_port}",
        relay_url="",
        secrets=str(folder),
        channels=frozenset(),
        drills_page=True,
        http_sd=(),
        drill_targets=(f"{HOST}:{hub}",),
        alertmanagers=(f"{HOST}:{alertmanager}",),
        scrape_s=_EVERY_S,
        evaluation_s=_EVERY_S,
    )
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    write(folder, options)
    token = folder / "tocsin_token"  # without one the gateway takes no order from Alertmanager
    token.touch(mode=0o600)
    token.write_text(os.environ.get("TOCSIN_TOKEN", ""), encoding="utf-8")
    monitor = Monitor(
        folder / "data",
        prometheus_yml=folder / PROMETHEUS,
        alertmanager_yml=folder / ALERTMANAGER,
        prometheus_port=prometheus,
        alertmanager_port=alertmanager,
    )
    with monitor:
        say(f"{monitor.prometheus_url}/alerts and {monitor.alertmanager_url} watch this run")
        yield {"TOCSIN_METRICS_PORT": str(hub), URL: monitor.alertmanager_url}


def _free_ports(many: int) -> list[int]:
    """Ports that are free now, all different."""
    with ExitStack() as held:
        found = [held.enter_context(socket.create_server((HOST, 0))) for _ in range(many)]
        return [int(one.getsockname()[1]) for one in found]
