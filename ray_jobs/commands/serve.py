"""`tocsin serve`: the checked model on this machine, or a serve config on a cluster."""

import os
import secrets
import threading
from pathlib import Path
from typing import Annotated

import typer

from tocsin.core.clock import SystemClock
from tocsin.core.errors import SpecError
from tocsin.core.terms import Profile
from tocsin.ray_jobs.commands.alerts import relay_beside
from tocsin.ray_jobs.commands.edge import one_line, terminated_as_interrupt

_WITH_CONFIG = frozenset({"config", "config_sha256", "detach", "alert_relay"})


@one_line
def serve(
    context: typer.Context,
    host: Annotated[str, typer.Option(help="address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one")] = 8000,
    replicas: Annotated[int, typer.Option(min=1, max=64)] = 2,
    profile: Annotated[Profile | None, typer.Option(help="how much is checked")] = None,
    model: Annotated[
        str, typer.Option(help="built-in name, or folder of a model")
    ] = "smollm2-135m",
    max_length: Annotated[int, typer.Option(min=32, help="prompt and answer tokens")] = 1024,
    archive_url: Annotated[
        str, typer.Option(help="copy finished journal files to s3://…, oss://… or file://…")
    ] = "",
    journal_prompts: Annotated[
        bool, typer.Option(help="store prompts with failures, for a replay on the model")
    ] = False,
    alert_relay: Annotated[
        Path | None, typer.Option(help="start an alert relay too (tocsin alerts example)")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="deploy this Ray Serve config instead of the options above")
    ] = None,
    config_sha256: Annotated[
        str, typer.Option(help="with --config: wait until the file is this one")
    ] = "",
    detach: Annotated[
        bool, typer.Option(help="with --config: leave it running on the cluster of RAY_ADDRESS")
    ] = False,
) -> None:
    """Serve the checked model with an OpenAI-compatible interface until Ctrl-C."""
    if config is not None:
        _refuse_others(context)
        if config_sha256:
            from tocsin.ray_jobs.arrival import wait_for_file

            wait_for_file(config, config_sha256, SystemClock())
        _serve_config(config, alert_relay, detach=detach)
        return
    if detach or config_sha256:
        option = "--detach" if detach else "--config-sha256"
        raise SpecError(f"serve: found {option} without --config, expected both; add --config FILE")
    from tocsin.engine.weights import prepare
    from tocsin.ray_jobs.application import deploy
    from tocsin.ray_jobs.cluster import Cluster, check_port, free_port
    from tocsin.ray_jobs.options import ServeOptions

    path = prepare(model)
    port = port or free_port(host)
    check_port(host, port)
    given = os.environ.get("TOCSIN_TOKEN", "")
    token = given or secrets.token_urlsafe(24)
    options = ServeOptions(
        path=str(path),
        model=model,
        profile=profile or Profile.FULL,
        replicas=replicas,
        max_length=max_length,
        pages=max(192, 8 * max_length // 16 + 1),
        archive_url=archive_url,
        journal_prompts=journal_prompts,
    )
    typer.echo(f"tocsin: starting {replicas} replicas of {options.served_name} …", err=True)
    with relay_beside(alert_relay), Cluster(replicas), terminated_as_interrupt():
        served = deploy(options, host=host, port=port, token=token)
        _say(served.url, options.served_name)
        if not given:
            typer.echo(f"  switchboard token (set TOCSIN_TOKEN to choose it): {token}")
        _until_interrupted()


def _serve_config(config: Path, alert_relay: Path | None, *, detach: bool) -> None:
    """Read the file first: what is wrong in it is said before anything is started."""
    from tocsin.ray_jobs.serve_file import read_serve_file

    file = read_serve_file(config)
    from tocsin.ray_jobs.cluster import Cluster, check_port
    from tocsin.ray_jobs.serve_deploy import cluster_address, deploy_file

    address = cluster_address()
    if address is None and detach:
        raise SpecError(
            "serve: found --detach without a cluster to leave it on, expected RAY_ADDRESS; set it, "
            "or leave --detach away"
        )
    if address is None:
        check_port(file.host or "0.0.0.0", file.port)
    name = file.arguments.options().served_name
    typer.echo(f"tocsin: {config}: deploying {file.replicas} replicas of {name} …", err=True)
    cluster = Cluster(file.replicas, address)
    if detach:
        _say(deploy_file(file), name, left=True)
        cluster.leave()
        return
    with relay_beside(alert_relay), cluster, terminated_as_interrupt():
        _say(deploy_file(file), name)
        _until_interrupted()


def _refuse_others(context: typer.Context) -> None:
    """An option that the file decides would be ignored: say so."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if name not in _WITH_CONFIG and source is not None and source.name == "COMMANDLINE":
            option = name.replace("_", "-")
            raise SpecError(
                f"serve: found --{option} beside --config, expected only the file; say it there"
            )


def _say(url: str, name: str, *, left: bool = False) -> None:
    ending = "it goes on without this command" if left else "Ctrl-C stops it"
    typer.echo(f"tocsin: serving {name} at {url} ({ending})")
    typer.echo(f"  curl {url}/v1/models")
    typer.echo(f"  curl {url}/metrics")
    typer.echo(f"  live page: {url}/live")


def _until_interrupted() -> None:
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        typer.echo("tocsin: stopping", err=True)
