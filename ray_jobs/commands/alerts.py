"""`tocsin alerts …`: rules and routes, the relay to robots and pagers, drills, dead letters."""

import asyncio
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tocsin.core.errors import EnvironmentFault, SpecError
from tocsin.ray_jobs.commands.alert_files import check, render
from tocsin.ray_jobs.commands.edge import one_line, terminated_as_interrupt

if TYPE_CHECKING:
    from collections.abc import Callable

    from tocsin.dashboards.relay.courier import Count
    from tocsin.dashboards.relay.letter import Letter
    from tocsin.dashboards.relay.service import Relay
    from tocsin.ray_jobs.alert_evidence import NodeEvidence

EXIT_UNDELIVERED = 1
_DELIVER_S = 120.0
_STOP_S = 15.0

alerts_app = typer.Typer(no_args_is_help=True, help="Bring alerts to people, and prove that.")
alerts_app.command()(render)
alerts_app.command()(check)

Config = Annotated[
    Path, typer.Option("--config", help="the relay's file; see tocsin alerts example")
]


@alerts_app.command()
@one_line
def example() -> None:
    """Print a configuration file to start from."""
    from tocsin.dashboards.relay.example import EXAMPLE

    typer.echo(EXAMPLE, nl=False)


@alerts_app.command()
@one_line
def relay(
    config: Config,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="instead of the file's; 0: any free one")
    ] = None,
    node: Annotated[
        Path | None, typer.Option(help="node folder with the journal; default: this user's")
    ] = None,
) -> None:
    """Take Alertmanager's notifications and bring them to robots and pagers until Ctrl-C."""
    import uvicorn

    from tocsin.dashboards.relay.app import relay_app
    from tocsin.dashboards.relay.config import load_config
    from tocsin.ray_jobs.alert_evidence import NodeEvidence
    from tocsin.ray_jobs.delivery_meter import delivery_counter

    known = load_config(config)
    host, chosen = known.listen.host, known.listen.port if port is None else port
    evidence = NodeEvidence(node, known.state / "reproductions")
    made = _relay(config, evidence, delivery_counter("relay"))
    with _listening(host, chosen) as listening:
        address = f"{host}:{listening.getsockname()[1]}"
        receivers = ", ".join(sorted(made.couriers))
        typer.echo(f"tocsin: alert relay at http://{address}/alerts/<receiver>: {receivers}")
        threading.Thread(target=evidence.warm, daemon=True).start()
        settings = uvicorn.Config(
            relay_app(made), log_level="warning", access_log=False, timeout_graceful_shutdown=5
        )
        # The server ends well on both signals, and then raises again what it caught.
        with suppress(KeyboardInterrupt), terminated_as_interrupt(), _own_numbers():
            uvicorn.Server(settings).run(sockets=[listening])


@alerts_app.command()
@one_line
def send(
    config: Config,
    receivers: Annotated[list[str] | None, typer.Argument(help="names; none: all")] = None,
) -> None:
    """Send a drill message, so that you know before the night that it arrives; 1 if it did not."""
    made = _relay(config)
    unknown = sorted(set(receivers or []) - set(made.couriers))
    if unknown:
        known = ", ".join(sorted(made.couriers))
        raise SpecError(f"alerts send: found no receiver {', '.join(unknown)}, expected {known}")
    _deliver(made, lambda: [made.drill(name) for name in receivers or sorted(made.couriers)])


@alerts_app.command()
@one_line
def redeliver(
    config: Config,
    receiver: Annotated[str | None, typer.Argument(help="name; none: all")] = None,
) -> None:
    """Send the dead letters again; 1 if one is still not taken, and then it stays a dead letter."""
    made = _relay(config)
    _deliver(made, lambda: made.redeliver(receiver))


@contextmanager
def _own_numbers() -> Iterator[None]:
    """A page of the relay's deliveries, where it runs alone in a pod and no hub reads its files."""
    if not os.environ.get("TOCSIN_METRICS_HOST"):
        yield
        return
    from tocsin.ray_jobs.driver_page import driver_page  # Ray is seconds away
    from tocsin.ray_jobs.places import node_folder

    with driver_page(node_folder()) as page:
        typer.echo(f"tocsin: its own numbers at http://{page}/metrics")
        yield


@contextmanager
def relay_beside(config: Path | None) -> Iterator[None]:
    """A relay in a process of its own while the block lasts; none without a configuration.

    Raises:
        SpecError: the configuration is not right: known before anything else is started.
    """
    if config is None:
        yield
        return
    _relay(config)
    command = Path(sys.executable).with_name("tocsin")
    child = subprocess.Popen([str(command), "alerts", "relay", "--config", str(config)])
    try:
        yield
    finally:
        child.terminate()
        child.wait(_STOP_S)


def _listening(host: str, port: int) -> socket.socket:
    """A socket that listens, before anything says so."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise EnvironmentFault(
            f"alerts relay: {host}:{port} cannot be listened on ({error.strerror}), expected a "
            "free port; stop the other server or choose another with --port"
        ) from error


def _relay(
    config: Path,
    evidence: "NodeEvidence | None" = None,
    count: "Count | None" = None,
) -> "Relay":
    """A relay from its file; what httpx logs holds the URLs of robots, which are secrets."""
    from tocsin.dashboards.relay.config import load_config
    from tocsin.dashboards.relay.service import Relay

    for name in ("httpx", "httpcore", "apprise"):
        logging.getLogger(name).setLevel(logging.WARNING)
    return Relay(
        load_config(config),
        reproduce=evidence.reproduce if evidence else None,
        evidence=evidence.find if evidence else None,
        count=count or (lambda receiver, result: None),
    )


def _deliver(made: "Relay", letters: "Callable[[], list[Letter]]") -> None:
    """Bring letters by ourselves, beside a relay that may run: each says what became of it."""

    async def deliver() -> list[str]:
        chosen = letters()
        tasks = [asyncio.ensure_future(courier.run()) for courier in made.couriers.values()]
        try:
            await asyncio.wait_for(made.emptied(), _DELIVER_S)
        except TimeoutError:
            typer.echo(f"tocsin: not all within {_DELIVER_S:.0f} s", err=True)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await made.stop(grace_s=0.0)
        return [letter.id for letter in chosen]

    ids = asyncio.run(deliver())
    lost = {letter.id: letter for letter in made.undelivered() if letter.id in ids}
    typer.echo(f"tocsin: {len(ids) - len(lost)} of {len(ids)} delivered")
    for letter in lost.values():
        typer.echo(f"  {letter.receiver}: {letter.error}", err=True)
    if lost:
        raise typer.Exit(EXIT_UNDELIVERED)
