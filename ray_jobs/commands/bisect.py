"""`tocsin bisect`: which operator of a failing request goes wrong first."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tocsin.core.errors import SpecError
from tocsin.ray_jobs.commands.edge import one_line

if TYPE_CHECKING:
    from tocsin.ray_jobs.bisect import Comparison

_AROUND = 5
_PROMPT = "The capital of France is"


@one_line
def bisect(
    failure_id: Annotated[
        str | None, typer.Argument(help="recorded failure: its request, options and chaos order")
    ] = None,
    prompt: Annotated[str | None, typer.Option(help="text of the request")] = None,
    model: Annotated[str, typer.Option(help="suspect: built-in name, or folder")] = "smollm2-135m",
    golden: Annotated[str | None, typer.Option(help="clean weights; the suspect's own")] = None,
    dtype: Annotated[str | None, typer.Option(help="of the suspect: fp32, bf16, fp16")] = None,
    fault: Annotated[str | None, typer.Option(help="chaos fault that the suspect suffers")] = None,
    seed: Annotated[int, typer.Option(help="of the fault")] = 1,
    max_tokens: Annotated[int, typer.Option(min=1, max=512)] = 12,
    folder: Annotated[list[Path] | None, typer.Option(help="where recorded failures are")] = None,
) -> None:
    """Run a request beside a clean float32 run; 1 and the operator's name if one diverges."""
    import torch

    from tocsin.ray_jobs.bisect import compare
    from tocsin.ray_jobs.options import DTYPES

    torch.set_num_threads(1)
    scenario = _scenario(failure_id, folder)
    options = scenario.get("options") or {}
    order = scenario.get("order")
    if fault is not None:
        order = {"kind": _known(fault), "seed": seed, "params": {}}
    kind = dtype or str(options.get("dtype") or "fp32")
    if kind not in DTYPES:
        raise SpecError(f"bisect: found dtype {kind!r}, expected one of {', '.join(DTYPES)}")
    suspect, tokenizer = _load(model, DTYPES[kind])
    clean, _ = _load(golden or model, torch.float32)
    config = _config(options)
    request = _request(scenario, prompt, tokenizer, suspect, config.max_model_len, max_tokens)
    found = compare(suspect, clean, request, config, order=order)
    _tell(found, kind)
    raise typer.Exit(0 if found.first is None else 1)


def _scenario(failure_id: str | None, folder: list[Path] | None) -> dict[str, Any]:
    if failure_id is None:
        return {}
    from tocsin.checker.reproduction.archive import find
    from tocsin.ray_jobs.model_replay import scenario_of

    return scenario_of(find(failure_id, folder))


def _known(fault: str) -> str:
    from tocsin.chaos.contract import faults
    from tocsin.core.faulting import Scope

    known = [name for name, unit in faults().items() if unit.scope is Scope.WORKER]
    if fault not in known:
        raise SpecError(f"bisect: found fault {fault!r}, expected one of {', '.join(known)}")
    return fault


def _load(name: str, dtype: Any) -> Any:
    from tocsin.engine.weights import load, prepare

    return load(prepare(name), dtype)


def _config(options: dict[str, Any]) -> Any:
    from tocsin.engine.config import EngineConfig

    length = int(options.get("max_length") or 512)
    size = int(options.get("page_size") or 16)
    return EngineConfig(
        slots=1,
        pages=2 * length // size + 2,
        page_size=size,
        max_model_len=length,
        torch_threads=1,
    )


def _request(
    scenario: dict[str, Any],
    prompt: str | None,
    tokenizer: Any,
    model: Any,
    max_length: int,
    max_tokens: int,
) -> Any:
    """The first recorded request, or the prompt."""
    from tocsin.core.requests import Request
    from tocsin.ray_jobs.prompting import Prompting

    prompting = Prompting(tokenizer, int(model.config.vocab_size), max_length)
    recorded = (scenario.get("requests") or [{}])[0] if prompt is None else {}
    if recorded.get("prompt_ids"):
        ids = tuple(recorded["prompt_ids"])
    elif recorded.get("messages"):
        ids = prompting.chat(recorded["messages"])
    else:
        ids = prompting.text(prompt or _PROMPT)
    complaint = prompting.complaint(ids, max_tokens)
    if complaint is not None:
        raise SpecError(f"bisect: {complaint}")
    return Request("bisect", ids, max_tokens, ignore_eos=True)


def _tell(found: "Comparison", dtype: str) -> None:
    """What diverged first and what stood around it."""
    from rich.console import Console
    from rich.table import Table

    out = Console(highlight=False, soft_wrap=True)
    if found.evidence:
        out.print(f"fault: {found.evidence}", markup=False)
    if found.ties:
        places = ", ".join(map(str, found.ties))
        out.print(f"another token was chosen at {places} with every operator right: a near tie")
    if found.first is None:
        worst = max((line.ratio for line in found.lines), default=0.0)
        out.print(
            f"no divergence: {found.calls:,} operator calls in {found.steps} steps are what clean "
            f"{dtype} operators give (worst of the last step {worst:.2f} of its limit)"
        )
        return
    first = found.first
    at = found.lines.index(first)
    table = Table(box=None, pad_edge=False)
    for name in ("", "operator", "module", "depth", "of limit", "drift"):
        table.add_column(name, no_wrap=True, justify="right" if name in _NUMBERS else "left")
    for line in found.lines[max(0, at - _AROUND) : at + _AROUND + 1]:
        table.add_row(
            "→" if line is first else ("!" if line.diverges else ""),
            line.operator,
            line.module,
            "" if line.depth is None else str(line.depth),
            f"{line.ratio:.3g}",
            f"{line.drift:.2g}",
        )
    where = f"{first.operator} {first.module}"
    depth = "" if first.depth is None else f", depth {first.depth}"
    out.print(f"first divergence: {where}{depth}, position {first.position}", markup=False)
    out.print(f"  {first.place}", markup=False)
    out.print(f"  after {found.calls:,} operator calls in {found.steps} steps, limits of {dtype}")
    out.print(table)


_NUMBERS = ("depth", "of limit", "drift")
