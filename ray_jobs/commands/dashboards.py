"""`tocsin dashboards …`: list, render for provisioning, push over HTTP, check for empty panels."""

from pathlib import Path
from typing import Annotated

import typer

from tocsin.dashboards.grafana.files import Addresses
from tocsin.ray_jobs.commands.edge import one_line

app = typer.Typer(no_args_is_help=True, help="Grafana: the six dashboards and how they get there.")

_EXIT_EMPTY = 1

Prometheus = Annotated[str, typer.Option(help="address of Prometheus, as Grafana reaches it")]
Docs = Annotated[str, typer.Option(help="address of this project's docs/, for runbook links")]
Live = Annotated[str, typer.Option(help="address of the gateway, for links from failure ids")]
Scrape = Annotated[int, typer.Option(min=1, help="seconds between two scrapes of Prometheus")]
Traces = Annotated[str, typer.Option(help="address of a trace, {id} where its id belongs")]

_DEFAULT = Addresses()


@app.command("list")
@one_line
def list_() -> None:
    """Print the dashboards and their panels."""
    from tocsin.dashboards.panels import DASHBOARDS

    for board in DASHBOARDS:
        typer.echo(f"{board.id} ({board.uid}): {board.description}")
        for panel in board.panels:
            typer.echo(f"  {panel.id:24} {panel.kind:11} {panel.title} · {panel.title_zh}")


@app.command()
@one_line
def render(
    out: Annotated[Path, typer.Option(help="folder to write to")],
    prometheus: Prometheus = _DEFAULT.prometheus,
    docs: Docs = _DEFAULT.docs,
    live: Live = "",
    traces: Traces = "",
    dashboards_path: Annotated[
        str, typer.Option(help="folder in which Grafana's server will find the JSON files")
    ] = _DEFAULT.dashboards,
    scrape_s: Scrape = _DEFAULT.scrape_s,
) -> None:
    """Write dashboards and provisioning files; copy them to where your Grafana reads them."""
    from tocsin.dashboards.grafana.files import write

    addresses = Addresses(prometheus, docs, live, traces, dashboards_path, scrape_s)
    for path in write(out, addresses):
        typer.echo(str(path))


@app.command()
@one_line
def push(
    url: Annotated[str, typer.Option(help="address of Grafana, with its path prefix")],
    token_file: Annotated[Path, typer.Option(help="file with a service account's token")],
    prometheus: Prometheus = _DEFAULT.prometheus,
    docs: Docs = _DEFAULT.docs,
    live: Live = "",
    traces: Traces = "",
    scrape_s: Scrape = _DEFAULT.scrape_s,
    alerts: Annotated[
        bool, typer.Option("--alerts", help="let Grafana evaluate the alert rules too")
    ] = False,
    webhook: Annotated[
        str, typer.Option(help="with --alerts: whom Grafana posts alerts to, a webhook's address")
    ] = "",
) -> None:
    """Write everything to a Grafana server; what is there already is left alone."""
    from tocsin.dashboards.grafana import push as pushing
    from tocsin.dashboards.grafana.client import GrafanaApi
    from tocsin.dashboards.relay.secret import read_secret

    server = GrafanaApi(url, read_secret(token_file, "dashboards push --token-file"))
    addresses = Addresses(prometheus, docs, live, traces, scrape_s=scrape_s)
    for step in pushing.push(server, addresses, alerts=alerts, webhook=webhook):
        typer.echo(f"{step.written:9} {step.name}")


@app.command()
@one_line
def check(
    prometheus: Annotated[str, typer.Argument(help="address of Prometheus")] = _DEFAULT.prometheus,
    range_s: Annotated[float, typer.Option(min=1, help="how far back to look")] = 300.0,
    rate_interval: Annotated[str, typer.Option(help="at least four scrapes")] = "1m",
) -> None:
    """Ask Prometheus every panel's queries; exit code 1 if one has no data."""
    from tocsin.dashboards.coverage import missing

    found = missing(prometheus, values={"__rate_interval": rate_interval}, range_s=range_s)
    for each in found:
        typer.echo(str(each))
    if found:
        raise typer.Exit(_EXIT_EMPTY)
    typer.echo("every panel has data")
