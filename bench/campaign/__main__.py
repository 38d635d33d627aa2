"""`python -m tocsin.bench.campaign`: run a coverage campaign, or report what its journals hold."""

import json
import time
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from tocsin.bench.campaign.campaign import report, share, work
from tocsin.bench.campaign.plan import KINDS, Campaign, Kind, quick, shards_of, trial_of
from tocsin.bench.campaign.table import show
from tocsin.bench.campaign.workshop import Workshop, load_served
from tocsin.core.errors import SpecError, TocsinError

FOLDER = Path("store/bench")
_EXIT_SPEC, _EXIT_INVALID = 64, 3
QUICK_MINUTES = 8.5
"""A quick run begins no shard that would end after this; the tables and a slip have the rest."""

app = typer.Typer(add_completion=False, no_args_is_help=False, pretty_exceptions_enable=False)

Seed = Annotated[int, typer.Option(help="draws every fault")]
Quick = Annotated[bool, typer.Option("--quick", help="the small campaign: minutes, wide intervals")]
Folder = Annotated[Path, typer.Option(help="where journals and results are kept")]


@app.command()
def run(
    seed: Seed = 1,
    quick_: Quick = False,
    folder: Folder = FOLDER,
    shard: Annotated[str, typer.Option(help="this machine's share, i/n")] = "1/1",
    ray: Annotated[int, typer.Option(help="Ray actors to share the work; 0: none")] = 0,
    threads: Annotated[int, typer.Option(help="of torch, here or in an actor")] = 1,
    only: Annotated[str, typer.Option(help=f"kinds, comma between: {', '.join(KINDS)}")] = "",
    minutes: Annotated[
        float, typer.Option(help="begin no shard that would end after this; 0: no end")
    ] = 0.0,
) -> None:
    """Make the trials that no journal has yet, then print the tables and write the results."""
    campaign = quick(seed) if quick_ else Campaign(seed=seed)
    limit = minutes or (QUICK_MINUTES if quick_ else 0.0)
    console = Console(width=max(120, Console().width))
    left = work(
        campaign,
        share(shards_of(campaign, _kinds(only)), shard),
        folder,
        part=shard,
        until_s=time.monotonic() + 60 * limit if limit else None,
        actors=ray,
        # Two threads on two busy cores wait for each other and are slower than one.
        threads=threads,
        progress=lambda done, total, key, took_s, left_s: console.print(
            f"{done}/{total} {key} {took_s:.1f} s, about {left_s / 60:.1f} min left",
            highlight=False,
        ),
    )
    show(report(campaign, folder), console, folder / "overhead.json")
    if left:
        console.print(f"{left} shards are left: the same command goes on where this one ended")


@app.command(name="report")
def report_(seed: Seed = 1, quick_: Quick = False, folder: Folder = FOLDER) -> None:
    """Print the tables of what the journals hold."""
    campaign = quick(seed) if quick_ else Campaign(seed=seed)
    console = Console(width=max(120, Console().width))
    show(report(campaign, folder), console, folder / "overhead.json")


@app.command()
def trial(
    key: Annotated[str, typer.Argument(help="coverage/<dtype>/<phase>/<shard>/<row>")],
    seed: Seed = 1,
    quick_: Quick = False,
    threads: Annotated[int, typer.Option(help="of torch")] = 1,
) -> None:
    """Make one trial again, alone among clean rows, and print its record."""
    campaign = quick(seed) if quick_ else Campaign(seed=seed)
    shard, row = trial_of(key)
    if shard not in shards_of(campaign, ("coverage",)) or row >= campaign.rows:
        raise SpecError(
            f"campaign: {key} is no trial of this campaign, expected one of its {campaign.rows} "
            "rows and of its batches; is it one of --quick?"
        )
    torch.set_num_threads(threads)
    workshop = Workshop(campaign, load_served)
    try:
        typer.echo(json.dumps(workshop.one(shard, row), indent=1, ensure_ascii=False))
    finally:
        workshop.close()


def _kinds(only: str) -> tuple[Kind, ...]:
    asked = tuple(filter(None, (word.strip() for word in only.split(","))))
    unknown = sorted(set(asked) - set(KINDS))
    if unknown:
        raise SpecError(
            f"campaign: --only names {unknown}, known are {list(KINDS)}; choose from these"
        )
    return tuple(kind for kind in KINDS if not asked or kind in asked)


def main() -> None:
    """Run the command; an error with a known cause is one line and an exit code."""
    try:
        app()
    except TocsinError as error:
        typer.echo(f"campaign: {error}", err=True)
        raise SystemExit(_EXIT_SPEC if isinstance(error, SpecError) else _EXIT_INVALID) from None


if __name__ == "__main__":
    main()
