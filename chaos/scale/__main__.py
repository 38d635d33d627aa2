"""`python -m tocsin.chaos.scale`: replay a large run, check a run, test the check itself."""

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tocsin.core.errors import SpecError, TocsinError

if TYPE_CHECKING:
    from tocsin.chaos.scale.check import ScaleReport

_EXIT_SPEC, _EXIT_INVALID = 64, 3

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)

Seed = Annotated[int, typer.Option(help="draws prompts, cancels, sins and what is kept")]
Jobs = Annotated[int, typer.Option(min=0, help="processes; 0: this one")]
Share = Annotated[float, typer.Option(min=0, max=1, help="of the clean requests kept whole")]
Piece = Annotated[int, typer.Option(min=1, help="tokens that arrive together")]
Requests = Annotated[int, typer.Argument(min=1)]


@app.command()
def generate(
    requests: Requests,
    folder: Annotated[Path, typer.Argument(help="a new run folder")],
    seed: Seed = 1,
    jobs: Annotated[int, typer.Option(min=1, help="processes")] = 1,
    share: Share = 0.001,
    piece: Piece = 1,
    sins: Annotated[int, typer.Option(min=0, help="answers made wrong")] = 0,
) -> None:
    """Replay a run: golden answers through online check and recorder."""
    from tocsin.chaos.scale.generate import Replay
    from tocsin.chaos.scale.generate import generate as replay_into
    from tocsin.chaos.scale.sinner import some

    began_s = time.monotonic()
    planted = some(requests, seed, sins) if sins else {}
    replay_into(
        folder,
        Replay(requests, seed=seed, sins=planted, piece=piece, share=share),
        jobs=jobs,
    )
    took_s = time.monotonic() - began_s
    typer.echo(f"{folder}: {requests:,} requests in {took_s:.1f} s")


@app.command()
def check(
    folder: Annotated[Path, typer.Argument(help="a run folder")],
    jobs: Jobs = 2,
    memory_mb: Annotated[int, typer.Option(min=128, help="of one process, in MiB")] = 1024,
    set_aside: Annotated[
        bool, typer.Option("--set-aside", help="hide torn chunks, so that all else reads the rest")
    ] = False,
) -> None:
    """Judge a run folder, and write scale.json into it."""
    from tocsin.chaos.scale.check import REPORT, check_folder
    from tocsin.chaos.scale.recorder import HISTORY, REQUESTS
    from tocsin.chaos.scale.table_reader import hide_torn, open_table
    from tocsin.chaos.store import write_json

    report = check_folder(folder, jobs=jobs, memory_mb=memory_mb)
    write_json(folder / REPORT, report.to_json())
    _say(report)
    if set_aside:
        for name in (REQUESTS, HISTORY):
            if (folder / name).is_dir():
                hide_torn(open_table(folder / name))
    raise typer.Exit(report.exit_code)


@app.command()
def selftest(
    requests: Requests = 100_000,
    folder: Annotated[Path | None, typer.Option(help="keep the run here")] = None,
    seed: Seed = 1,
    jobs: Jobs = 2,
    share: Share = 0.001,
    piece: Piece = 1,
) -> None:
    """Plant every known sin once among clean requests; each must be found, and nothing else."""
    from tocsin.chaos.scale.generate import Replay
    from tocsin.chaos.scale.selftest import self_test

    with ExitStack() as stack:
        place = folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        replay = Replay(requests, seed=seed, share=share, piece=piece)
        result = self_test(place, replay, jobs=jobs)
    for one in result.planted:
        found = ", ".join(one.flagged) or "nothing"
        wanted = "" if one.caught else f", expected {', '.join(one.expected)}"
        sign = "caught" if one.caught else "MISSED"
        typer.echo(f"{sign}  {one.sin} in {one.request_id}: {found}{wanted}")
    caught = sum(one.caught for one in result.planted)
    typer.echo(
        f"{caught} of {len(result.planted)} sins caught, {result.false} false "
        f"in {requests - len(result.planted):,} clean requests"
    )
    _say(result.report)
    raise typer.Exit(0 if result.passed else _EXIT_INVALID)


def _say(report: "ScaleReport") -> None:
    """The verdict, for people."""
    for name, tally in report.tally.items():
        typer.echo(
            f"{tally.conclusion:8} {name}: {tally.checked:,} checked, "
            f"{tally.violations:,} violations"
        )
        for request, what in tally.first[:3]:
            typer.echo(f"         {request}: {what}")
        for reason, count in tally.unknown.items():
            typer.echo(f"         {count:,} {reason}")
    for line in (*report.lost, *report.notes):
        typer.echo(line)
    rate = report.requests / report.cpu_s if report.cpu_s else 0.0
    typer.echo(
        f"{report.requests:,} requests, {report.tokens:,} tokens, "
        f"{report.whole:,} requests judged by their tokens: "
        f"{report.wall_s:.1f} s, {rate:,.0f} requests a second and core, "
        f"{report.rss_mb_max} MiB a process"
    )


def main() -> None:
    """Run the command; an error with a known cause is one line and an exit code."""
    try:
        app()
    except TocsinError as error:
        typer.echo(f"scale: {error}", err=True)
        raise SystemExit(_EXIT_SPEC if isinstance(error, SpecError) else _EXIT_INVALID) from None


if __name__ == "__main__":
    main()
