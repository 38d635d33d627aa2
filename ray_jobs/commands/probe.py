"""`tocsin probe`: ask a running service whether it is healthy, checked as declared, and answers."""

from typing import Annotated

import typer

from tocsin.core.terms import Profile
from tocsin.ray_jobs.commands.edge import one_line

_REQUEST_S = 30.0


@one_line
def probe(
    url: Annotated[str, typer.Argument(help="address of the gateway: http://host:8000")],
    profile: Annotated[
        Profile | None, typer.Option(help="what must be checked; none: whatever is")
    ] = None,
    completion: Annotated[bool, typer.Option(help="ask for one short answer too")] = True,
    within_s: Annotated[
        float, typer.Option(min=0, max=3600, help="seconds for all to become well")
    ] = 60.0,
) -> None:
    """Print one line for each thing that was looked at; the exit code is 1 when one is wrong."""
    import httpx

    from tocsin.core.clock import SystemClock
    from tocsin.ray_jobs.probing import probe as look
    from tocsin.ray_jobs.service import address_of

    with httpx.Client(base_url=address_of(url, "probe"), timeout=_REQUEST_S) as client:
        seen = look(
            client,
            profile=profile,
            completion=completion,
            within_s=within_s,
            clock=SystemClock(),
        )
    for one in seen:
        typer.echo(one.line())
    raise typer.Exit(0 if all(one.ok for one in seen) else 1)
