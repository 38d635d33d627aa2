"""`tocsin top`: the live page in a terminal."""

import time
from typing import Annotated

import typer

from tocsin.core.errors import EnvironmentFault
from tocsin.dashboards.live.state import LiveState
from tocsin.ray_jobs.commands.edge import one_line

_TIMEOUT_S = 5.0
_WIDE = 150
_LOST_MAX = 5
"""Failed readings in a row after which it gives up: the server is gone."""


@one_line
def top(
    url: Annotated[
        str, typer.Option(envvar="TOCSIN_URL", help="address of the gateway")
    ] = "http://127.0.0.1:8000",
    once: Annotated[bool, typer.Option("--once", help="print one frame and stop")] = False,
    language: Annotated[str, typer.Option("--lang", help="en or zh")] = "en",
    every_s: Annotated[float, typer.Option("--every", min=0.2, help="seconds")] = 1.0,
) -> None:
    """Show operators, replicas, failures and switches of a running service, live."""
    from rich.console import Console
    from rich.live import Live

    from tocsin.core.errors import SpecError
    from tocsin.dashboards.live.terminal import draw
    from tocsin.dashboards.live.words import LANGUAGES

    if language not in LANGUAGES:
        raise SpecError(f"top: --lang is {language!r}, expected one of {', '.join(LANGUAGES)}")
    state = read(url)
    console = Console()
    if once:
        console.print(draw(state, language, wide=console.width >= _WIDE))
        return
    lost = 0
    with Live(console=console, screen=console.is_terminal, auto_refresh=False) as screen:
        while True:
            screen.update(draw(state, language, wide=console.width >= _WIDE), refresh=True)
            time.sleep(every_s)
            try:
                state, lost = read(url), 0
            except EnvironmentFault:
                lost += 1
                if lost >= _LOST_MAX:
                    raise


def read(url: str) -> LiveState:
    """The state of the service at an address.

    Raises:
        EnvironmentFault: nobody answers there, or it is not a gateway of this version.
    """
    import httpx
    from pydantic import ValidationError

    from tocsin.dashboards.live.state import from_json
    from tocsin.dashboards.live.terminal import SPARKS

    where = f"{url.rstrip('/')}/live/state.json"
    hint = "start one with `tocsin serve`, or name its address with --url"
    try:
        answer = httpx.get(where, params={"points": SPARKS}, timeout=_TIMEOUT_S)
        answer.raise_for_status()
        return from_json(answer.json())
    except httpx.HTTPStatusError as error:
        status = error.response.status_code
        raise EnvironmentFault(
            f"top: {where} answered {status}, expected a gateway; {hint}"
        ) from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise EnvironmentFault(f"top: no service answers at {url} ({error}); {hint}") from error
    except (ValueError, ValidationError) as error:
        raise EnvironmentFault(
            f"top: {where} is not the state of a gateway of this version; use the same version "
            "on both sides"
        ) from error
