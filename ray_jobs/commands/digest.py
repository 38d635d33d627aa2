"""`tocsin digest`: the week in one page, from the journals of this node or of any folders."""

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tocsin.core.errors import SpecError
from tocsin.ray_jobs.commands.edge import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

_UNITS_S = {"h": 3600.0, "d": 86400.0, "w": 604800.0}
_WRITER = re.compile(r"(?P<writer>[^.]+)\.(?:\d{8}T\d{6}Z-\d{4}\.)?jsonl(?:\.gz)?")


@one_line
def digest(
    since: Annotated[str, typer.Option(help="length of the period: 24h, 7d, 2w")] = "7d",
    folder: Annotated[
        list[Path] | None,
        typer.Option(help="journal or node folder, repeatable; none: this node's"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="folder for an HTML and a Markdown file; none: print")
    ] = None,
) -> None:
    """Say what failed by operator and check, against the period before, with examples to run."""
    from tocsin.core.clock import SystemClock
    from tocsin.dashboards.digest import make_digest, markdown, page
    from tocsin.ray_jobs.places import journal_folder

    until_s = SystemClock().wall_s()
    since_s = until_s - _length_s(since)
    folders = [_journal(place) for place in folder] if folder else [journal_folder()]
    made = make_digest(_writers(folders), since_s, until_s)
    if out is None:
        typer.echo(markdown(made), nl=False)
        return
    out.mkdir(parents=True, exist_ok=True)
    day = datetime.fromtimestamp(until_s, tz=UTC).strftime("%Y-%m-%d")
    for ending, text in (("html", page(made)), ("md", markdown(made))):
        path = out / f"tocsin-digest-{day}.{ending}"
        path.write_text(text, encoding="utf-8")
        typer.echo(f"written: {path}")


def _length_s(text: str) -> float:
    found = re.fullmatch(r"(\d{1,4})([hdw])", text)
    if found is None or not int(found[1]):
        raise SpecError(f"digest: --since is {text!r}, expected a length such as 24h, 7d or 2w")
    return int(found[1]) * _UNITS_S[found[2]]


def _journal(place: Path) -> Path:
    """The journal folder below a node folder, or the folder itself."""
    if not place.is_dir():
        raise SpecError(
            f"digest: {place} is no folder, expected a journal or a node folder; "
            "without --folder this node's journal is read"
        )
    below = place / "journal"
    return below if below.is_dir() else place


def _writers(folders: list[Path]) -> "Iterator[Iterator[dict[str, Any]]]":
    """The records of each writer, merged rows included."""
    from tocsin.checker.journal import records_in

    for place in folders:
        names = {
            found["writer"]
            for path in place.iterdir()
            if (found := _WRITER.fullmatch(path.name)) is not None
        }
        for name in sorted(names):
            yield records_in(place / f"{name}.jsonl", rows=True)
