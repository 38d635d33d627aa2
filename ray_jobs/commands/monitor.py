"""`tocsin monitor`: Prometheus and Alertmanager with the generated rules, against a cluster."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import httpx
import typer

from tocsin.core.errors import EnvironmentFault
from tocsin.ray_jobs.commands.edge import one_line, terminated_as_interrupt
from tocsin.ray_jobs.monitor import ALERTMANAGER_PORT, HOST, PROMETHEUS_PORT, Monitor

if TYPE_CHECKING:
    from tocsin.dashboards.render.options import Channel

_LOOK_S = 1.0


@one_line
def monitor(
    url: Annotated[str, typer.Option(help="gateway of the served model")] = "http://127.0.0.1:8000",
    metrics: Annotated[str, typer.Option(help="host:port of a node's hub")] = "127.0.0.1:9464",
    relay: Annotated[
        Path | None, typer.Option(help="start a relay with this file (tocsin alerts example)")
    ] = None,
    scrape_s: Annotated[int, typer.Option(min=1, max=60, help="seconds between scrapes")] = 5,
    prometheus_port: Annotated[int, typer.Option(min=1, max=65535)] = PROMETHEUS_PORT,
    alertmanager_port: Annotated[int, typer.Option(min=1, max=65535)] = ALERTMANAGER_PORT,
    data: Annotated[Path | None, typer.Option(help="folder for data and logs")] = None,
) -> None:
    """Watch a running cluster with Debian's Prometheus and Alertmanager until Ctrl-C."""
    from tocsin.dashboards.render.files import ALERTMANAGER, PROMETHEUS, write
    from tocsin.dashboards.render.options import RenderOptions
    from tocsin.ray_jobs.cluster import check_port

    folder = (data or Path(tempfile.gettempdir()) / f"tocsin-{os.getuid()}" / "monitor").resolve()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    options = RenderOptions(
        gateway_url=url,
        secrets=str(_secrets(folder)),
        # People are reached through the relay alone, so that one file says how.
        channels=_channels(relay),
        relay_only=True,
        http_sd=(f"http://{metrics}/sd",),
        alertmanagers=(f"{HOST}:{alertmanager_port}",),
        scrape_s=scrape_s,
        evaluation_s=scrape_s,
    )
    monitor = Monitor(
        folder,
        prometheus_yml=folder / PROMETHEUS,
        alertmanager_yml=folder / ALERTMANAGER,
        prometheus_port=prometheus_port,
        alertmanager_port=alertmanager_port,
    )
    _hub_answers(metrics)
    for port, option in ((prometheus_port, "prometheus"), (alertmanager_port, "alertmanager")):
        check_port(HOST, port, command="monitor", option=f"--{option}-port")
    write(folder, options)
    child = _relay(relay)
    try:
        with terminated_as_interrupt(), monitor:
            typer.echo(f"tocsin: Prometheus    {monitor.prometheus_url}/alerts")
            typer.echo(f"tocsin: Alertmanager  {monitor.alertmanager_url}")
            typer.echo(f"tocsin: live page     {url}/live")
            if child is None:
                typer.echo("tocsin: no relay runs here, so nobody is told; see --relay")
            _until_interrupted(monitor, child)
    finally:
        if child is not None:
            child.terminate()
            child.wait(10.0)


def _secrets(folder: Path) -> Path:
    """A private folder with the switchboard's token, where Alertmanager reads it."""
    secrets = folder / "secrets"
    secrets.mkdir(exist_ok=True, mode=0o700)
    descriptor = os.open(secrets / "tocsin_token", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(os.environ.get("TOCSIN_TOKEN", ""))
    return secrets


def _channels(config: Path | None) -> "frozenset[Channel]":
    """Those that the relay's file has a receiver for; the rest would be refused all day."""
    from tocsin.dashboards.relay.config import load_config
    from tocsin.dashboards.render.options import Channel

    known = load_config(config).receivers if config is not None and config.is_file() else {}
    return frozenset(channel for channel in Channel if channel in known)


def _hub_answers(metrics: str) -> None:
    try:
        answer = httpx.get(f"http://{metrics}/healthz", timeout=5.0, trust_env=False)
        why = "" if answer.is_success else f"HTTP {answer.status_code}"
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        why = str(error) or type(error).__name__
    if why:
        raise EnvironmentFault(
            f"monitor: no hub answered at {metrics} ({why}), expected a running cluster; start "
            "one with make serve, or say where it is with --metrics HOST:PORT"
        )


def _relay(config: Path | None) -> "subprocess.Popen[bytes] | None":
    if config is None:
        return None
    if not config.is_file():
        raise EnvironmentFault(
            f"monitor: {config} was not found, expected the relay's file; write one with "
            "tocsin alerts example"
        )
    command = Path(sys.executable).with_name("tocsin")
    return subprocess.Popen([str(command), "alerts", "relay", "--config", str(config)])


def _until_interrupted(monitor: Monitor, child: "subprocess.Popen[bytes] | None") -> None:
    try:
        while True:
            fallen = monitor.fallen()
            if child is not None and child.poll() is not None:
                fallen = f"the relay ended with {child.returncode}"
            if fallen:
                raise EnvironmentFault(f"monitor: {fallen}; the others were ended as well")
            time.sleep(_LOOK_S)
    except KeyboardInterrupt:
        typer.echo("tocsin: stopping", err=True)
