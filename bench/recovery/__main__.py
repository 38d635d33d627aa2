"""`python -m tocsin.bench.recovery`: every rung of the ladder on SmolLM2, timed."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from tocsin.bench.recovery.schema import DEFAULT_PATH, table_of, write
from tocsin.core.errors import SpecError, TocsinError

EXIT_BAD, EXIT_CANNOT, EXIT_SPEC = 1, 3, 64

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def recovery(
    trials: Annotated[int, typer.Option(min=1, help="rounds of each rung")] = 5,
    rung: Annotated[list[str] | None, typer.Option(help="only this rung")] = None,
    output: Annotated[Path, typer.Option(help="where the report goes")] = DEFAULT_PATH,
) -> None:
    """Measure how soon each rung of the recovery ladder repairs its fault, and whether it does."""
    try:
        _run(trials, rung or [], output)
    except SpecError as error:
        typer.echo(f"recovery: {error}", err=True)
        raise typer.Exit(EXIT_SPEC) from None
    except TocsinError as error:
        typer.echo(f"recovery: {error}", err=True)
        raise typer.Exit(EXIT_CANNOT) from None


def _run(trials: int, only: list[str], output: Path) -> None:
    import torch

    from tocsin.bench.recovery.desk import Desk
    from tocsin.bench.recovery.measure import measure
    from tocsin.bench.recovery.rungs import RUNGS
    from tocsin.engine.weights import load, prepare

    known = {rung.id: rung for rung in RUNGS}
    if unknown := sorted(set(only) - set(known)):
        raise SpecError(
            f"found rung {', '.join(unknown)}, known are {', '.join(known)}; correct it"
        )
    torch.set_num_threads(1)
    path = prepare()
    model, tokenizer = load(path)
    desk = Desk(model, tokenizer, vocabulary=40_000, tokens=10)
    try:
        report = measure(
            desk,
            trials,
            model_name=path.name,
            rungs=[rung for rung in RUNGS if not only or rung.id in only],
            told=lambda text: typer.echo(text, err=True),
        )
    finally:
        desk.close()
    write(output, report)
    typer.echo(table_of(report))
    typer.echo(str(output))
    if not report.good:
        raise typer.Exit(EXIT_BAD)


if __name__ == "__main__":
    sys.exit(app())
