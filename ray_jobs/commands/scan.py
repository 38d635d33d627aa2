"""`tocsin scan --plan`: how much to check each operator, from what its checks have found so far."""

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Annotated

import typer

from tocsin.core.errors import EnvironmentFault, SpecError
from tocsin.ray_jobs.commands.edge import one_line

_ANSWER_S = 30.0


@one_line
def scan(
    source: Annotated[
        str,
        typer.Argument(
            help="a scrape of /metrics or an answer of /health/checker_status: a file or a URL"
        ),
    ],
    plan: Annotated[bool, typer.Option("--plan", help="propose a level for each operator")] = False,
    journal: Annotated[
        Path | None, typer.Option(help="a journal's folder: its findings count as alarms too")
    ] = None,
    out: Annotated[
        Path, typer.Option(help="settings file to write: a replica's user_config")
    ] = Path("checker.yaml"),
    sample: Annotated[
        str, typer.Option(help="share of requests that stays under the full set")
    ] = "1%",
) -> None:
    """Propose how much to check each operator, from how often its checks have alarmed."""
    import yaml

    from tocsin.checker import plan as planning
    from tocsin.ray_jobs.configured import parse_settings

    if not plan:
        raise SpecError("scan: found no --plan, expected it; add --plan to propose the levels")
    text = _read(source)
    if text.lstrip().startswith("{"):
        rates = planning.rates_in_status(_json(text, source), source)
    else:
        rates = planning.rates_in_metrics(text, source)
    failures = {} if journal is None else planning.failures_in_journal(journal)
    proposals = planning.propose(planning.joined(rates, failures))
    share = parse_settings({"sample": sample}, "--sample").sample
    settings = planning.settings_for(proposals, share)
    chosen = settings.model_dump(mode="json", exclude_unset=True)
    parse_settings(chosen)  # what is written is what a replica accepts
    typer.echo(planning.table_of(proposals, failures))
    out.write_text(
        f"# Proposed by tocsin scan --plan from {Path(source).name}.\n"
        + yaml.safe_dump(chosen, sort_keys=False),
        encoding="utf-8",
    )
    typer.echo(f"tocsin: {len(settings.levels)} levels in {out}")


def _read(source: str) -> str:
    """The text of a file or an address."""
    if not source.startswith(("http://", "https://")):
        return Path(source).read_text(encoding="utf-8")
    try:
        with urllib.request.urlopen(source, timeout=_ANSWER_S) as answer:
            text: str = answer.read().decode()
    except (urllib.error.URLError, TimeoutError) as error:
        raise EnvironmentFault(f"scan: {source} gave no answer: {error}; start it") from error
    return text


def _json(text: str, source: str) -> dict[str, object]:
    try:
        status: dict[str, object] = json.loads(text)
    except json.JSONDecodeError as error:
        raise SpecError(f"scan: {source} is no JSON: {error}; save the answer whole") from None
    return status
