"""`make bench`: measure what checking costs and print it beside what it catches."""

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tocsin.bench.overhead.coverage import DEFAULT_PATH as COVERAGE_PATH
from tocsin.bench.overhead.schema import DEFAULT_PATH
from tocsin.core.errors import SpecError, TocsinError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from tocsin.bench.overhead.plan import Case

EXIT_SPEC, EXIT_CANNOT, EXIT_INTERRUPTED = 64, 3, 130

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

TOKENS_MIN = 1024
"""More than any case needs: the text stands there again and again."""

_WORDS = {
    "mode": ("eager", "compiled"),
    "dtype": ("fp32", "bf16"),
    "phase": ("decode", "prefill"),
    "device": ("cpu", "cuda"),
}
_DEVICES: dict[str, Literal["cpu", "cuda"]] = {"cpu": "cpu", "cuda": "cuda"}


@app.command()
def measure(
    quick: Annotated[bool, typer.Option("--quick", help="the part that ten minutes allow")] = False,
    seed: Annotated[int, typer.Option(min=0, help="of the order within each round")] = 1,
    mode: Annotated[list[str] | None, typer.Option(help="only eager or compiled")] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="only fp32 or bf16")] = None,
    phase: Annotated[list[str] | None, typer.Option(help="only decode or prefill")] = None,
    batch: Annotated[list[int] | None, typer.Option(help="only this batch: 1, 8, 32")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    ours: Annotated[bool, typer.Option("--ours", help="without the competitors")] = False,
    minutes: Annotated[
        float | None, typer.Option(min=0.1, help="time for all; the plan's own if not given")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="go on with the report that is there")
    ] = False,
    output: Annotated[Path, typer.Option(help="where the report goes")] = DEFAULT_PATH,
    coverage: Annotated[Path, typer.Option(help="report of make campaign")] = COVERAGE_PATH,
    show: Annotated[bool, typer.Option("--show", help="print the last report again")] = False,
) -> None:
    """Measure the overhead of every profile and competitor, paired and interleaved."""
    from tocsin.bench.overhead.coverage import read_coverage
    from tocsin.bench.overhead.schema import read
    from tocsin.bench.overhead.table import print_tables

    try:
        caught = read_coverage(coverage)
        if show:
            print_tables(read(output), caught)
            return
        words = {"mode": mode, "dtype": dtype, "phase": phase, "device": [device]}
        for name, given in words.items():
            _known(name, given or [])
        try:
            _run(quick, seed, mode, dtype, phase, batch, device, ours, minutes, resume, output)
        finally:
            # Also after an interrupt: what there is stands in the file.
            if output.is_file():
                print_tables(read(output), caught)
    except SpecError as error:
        _fail(str(error), EXIT_SPEC)
    except TocsinError as error:
        _fail(str(error), EXIT_CANNOT)
    except KeyboardInterrupt:
        _fail(f"bench: interrupted; {output} holds what was measured", EXIT_INTERRUPTED)


def _run(
    quick: bool,
    seed: int,
    mode: list[str] | None,
    dtype: list[str] | None,
    phase: list[str] | None,
    batch: list[int] | None,
    device: str,
    ours: bool,
    minutes: float | None,
    resume: bool,
    output: Path,
) -> None:
    from dataclasses import replace

    import torch

    from tocsin.bench.competitors.table import competitors
    from tocsin.bench.overhead import plan as plans
    from tocsin.bench.overhead.bench import Bench
    from tocsin.bench.overhead.schema import read

    torch.set_num_threads(1)
    if device == "cuda" and not torch.cuda.is_available():
        raise SpecError("bench: --device is cuda, expected a GPU that torch sees; leave it out")
    plan = plans.quick() if quick else plans.full()
    plan = plans.only(plan, mode or [], dtype or [], phase or [], batch or [])
    if minutes is not None:
        plan = replace(plan, budget_s=minutes * 60)
    # SIGTERM ends a run as Ctrl-C does: with a valid report.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    earlier = read(output) if resume else None
    who = () if ours else competitors()
    Bench(_load, who, output, seed, _Progress(), _DEVICES[device], earlier).run(plan)


def _load(dtype: "torch.dtype") -> "tuple[nn.Module, torch.Tensor]":
    """The served model and the tokens of a text that is long enough for every case."""
    import torch

    from tocsin.bench.overhead.text import TEXT
    from tocsin.engine.weights import load, prepare

    model, tokenizer = load(prepare(), dtype)
    tokens = torch.tensor(tokenizer(TEXT).input_ids)
    return model, tokens.repeat(TOKENS_MIN // len(tokens) + 1)


class _Progress:
    """One line a case and a word a variant, on standard error."""

    def case(self, case: "Case", number: int, of: int) -> None:
        """See `bench.Listener`."""
        layers = f", {case.layers} layers" if case.layers else ""
        sys.stderr.write(
            f"\nbench: {number}/{of} {case.subject} {case.phase} batch {case.batch} {case.dtype} "
            f"{case.mode}{layers}:"
        )
        sys.stderr.flush()

    def variant(self, name: str) -> None:
        """See `bench.Listener`."""
        sys.stderr.write(f" {name},")
        sys.stderr.flush()

    def pairs(self, pairs: int) -> None:
        """See `bench.Listener`."""
        sys.stderr.write(" rounds: 1" if pairs == 1 else f" {pairs}")
        sys.stderr.flush()


def _known(name: str, given: list[str]) -> None:
    wrong = sorted(set(given) - set(_WORDS[name]))
    if wrong:
        raise SpecError(
            f"bench: --{name} is {wrong[0]!r}, expected one of {', '.join(_WORDS[name])}; "
            "correct it"
        )


def _fail(message: str, code: int) -> None:
    sys.stderr.write(f"\n{message}\n")
    raise typer.Exit(code)


if __name__ == "__main__":
    app()
