"""`tocsin trace`: what became of a request, from its trace id or the id of a failure in it."""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tocsin.core.errors import SpecError
from tocsin.ray_jobs.commands.edge import one_line

if TYPE_CHECKING:
    from tocsin.ray_jobs.tracing.read import Span

Wanted = Annotated[str, typer.Argument(help="trace id, failure id, or latest")]
Folder = Annotated[
    list[Path] | None, typer.Option(help="where to look: node folder, spans, chaos run or store")
]
_TRACE_ID = re.compile(r"[0-9a-f]{32}")
_FAILURE_ID = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}")


@one_line
def trace(wanted: Wanted = "latest", folder: Folder = None) -> None:
    """Show a kept trace: its spans, what failed in them, and what was done about it."""
    from tocsin.ray_jobs.places import spans_folder
    from tocsin.ray_jobs.tracing.read import latest, spans_of
    from tocsin.ray_jobs.tracing.tree import tree

    folders = folder or [spans_folder(), Path("store")]
    for one in folder or ():
        if not one.is_dir():
            raise SpecError(f"trace: {one} is not a folder, expected one with span files")
    traces: list[list[Span]] = []
    if wanted == "latest":
        traces = [spans for one in folders for spans in latest(one, 1)]
        traces = sorted(traces, key=lambda spans: spans[0].start_ns)[-1:]
    elif _TRACE_ID.fullmatch(wanted.lower()):
        found = [span for one in folders for span in spans_of(one, trace_id=wanted.lower())]
        traces = [_once(found)] if found else []
    elif _FAILURE_ID.fullmatch(wanted.upper()):
        found = [span for one in folders for span in spans_of(one, failure_id=wanted.upper())]
        ids = dict.fromkeys(span.trace_id for span in found)
        traces = [_once([span for span in found if span.trace_id == name]) for name in ids]
    else:
        raise SpecError(
            f"trace: found {wanted!r}, expected 32 hexadecimal digits, the id of a failure, or "
            "latest; copy it from an alert, the journal or a traceparent header"
        )
    if not traces:
        looked = ", ".join(os.path.relpath(one) for one in folders)
        raise SpecError(
            f"trace: found no kept trace for {wanted} in {looked}; an undisturbed request is kept "
            "once in a hundred (OTEL_TRACES_SAMPLER_ARG), name the folder with --folder"
        )
    for spans in traces:
        for line in tree(spans):
            typer.echo(line)


def _once(spans: "list[Span]") -> "list[Span]":
    """Each span once: a run keeps a copy of what the node folder may still have."""
    return list({span.span_id: span for span in spans}.values())
