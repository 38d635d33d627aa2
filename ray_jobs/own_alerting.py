"""Prometheus and Alertmanager for the length of a chaos run, with generated rules and routes."""

import os
import secrets
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tocsin.core.errors import SpecError
from tocsin.dashboards.render.files import ALERTMANAGER, PROMETHEUS, write
from tocsin.dashboards.render.options import RenderOptions
from tocsin.ray_jobs.cluster import free_port
from tocsin.ray_jobs.monitor import HOST, Monitor

URL, _TOKEN = "TOCSIN_ALERTMANAGER_URL", "TOCSIN_TOKEN"
_EVERY_S = 1
"""Between scrapes and between evaluations: a run lasts for a minute or two."""


@contextmanager
def own_alerting(gateway_port: int, say: Callable[[str], None]) -> Iterator[Mapping[str, str]]:
    """Start both on loopback, and end them with the block; nobody is told but the run itself.

    Yields:
        The environment by which what is served next is scraped, pushes, and takes orders.

    Raises:
        SpecError: an Alertmanager is named already.
        EnvironmentFault: a program is missing, or did not become ready.
    """
    if os.environ.get(URL):
        raise SpecError(
            f"chaos run: --alerts starts an Alertmanager of its own, and {URL} names another one; "
            "leave one of the two out"
        )
    hub, prometheus, alertmanager = (free_port(HOST) for _ in range(3))
    token = os.environ.get(_TOKEN) or secrets.token_urlsafe()
    with tempfile.TemporaryDirectory(prefix="tocsin-alerts-") as name:
        folder = Path(name)
        options = RenderOptions(
            gateway_url=f"http://{HOST}:{gateway_port}",
            secrets=str(folder),
            channels=frozenset(),
            relay_only=True,
            drills_page=True,
            http_sd=(),
            drill_targets=(f"{HOST}:{hub}",),
            alertmanagers=(f"{HOST}:{alertmanager}",),
            scrape_s=_EVERY_S,
            evaluation_s=_EVERY_S,
        )
        write(folder, options)
        file = folder / "tocsin_token"
        file.touch(mode=0o600)
        file.write_text(token, encoding="utf-8")
        monitor = Monitor(
            folder / "data",
            prometheus_yml=folder / PROMETHEUS,
            alertmanager_yml=folder / ALERTMANAGER,
            prometheus_port=prometheus,
            alertmanager_port=alertmanager,
        )
        with monitor:
            say(f"{monitor.prometheus_url}/alerts and {monitor.alertmanager_url} watch this run")
            yield {
                "TOCSIN_METRICS_PORT": str(hub),
                URL: monitor.alertmanager_url,
                _TOKEN: token,
            }
