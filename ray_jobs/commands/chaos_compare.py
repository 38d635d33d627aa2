"""`tocsin chaos compare`: two recorded runs side by side, and whether the second is worse."""

import json
from pathlib import Path
from typing import Annotated

import typer

from tocsin.chaos.compare.meaning import MEANING, TOLERANCE
from tocsin.core.errors import SpecError

EXIT_NO_WORSE, EXIT_WORSE = 0, 1


def compare(
    a: Annotated[str, typer.Argument(help="folder of a run, EXPERIMENT/RUN or EXPERIMENT")],
    b: Annotated[str, typer.Argument(help="the run that is asked about, named likewise")],
    store: Annotated[Path, typer.Option(help="folder of the runs")] = Path("store"),
    tolerance: Annotated[
        float, typer.Option(min=0.0, max=10.0, help="share by which a time may grow")
    ] = TOLERANCE,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON in place of tables")] = False,
    html: Annotated[Path | None, typer.Option(help="write one HTML page, too")] = None,
) -> None:
    """Compare two recorded runs: exit 0 when B is no worse than A, 1 when it is.

    An experiment's name stands for its newest run that has a verdict.
    """
    from tocsin.chaos.compare.comparing import compare_runs
    from tocsin.chaos.past_runs import find_run

    found = compare_runs(find_run(store, a), find_run(store, b), tolerance)
    if as_json:
        typer.echo(json.dumps(found.to_json(), indent=1, ensure_ascii=False))
    else:
        from tocsin.chaos.compare.text import comparison_text

        typer.echo(comparison_text(found), nl=False)
    if html is not None:
        from tocsin.chaos.compare.render import render_comparison

        try:
            html.write_text(render_comparison(found), encoding="utf-8")
        except OSError as error:
            raise SpecError(
                f"{html}: cannot be written ({error.strerror or error}); name another --html"
            ) from None
    raise typer.Exit(EXIT_WORSE if found.worse else EXIT_NO_WORSE)


compare.__doc__ = f"{compare.__doc__}\n\n{MEANING}"
