"""The report of a chaos run: one HTML file that needs no network and says what is not known."""

import datetime
import os
from pathlib import Path

from tocsin.chaos.case import Case
from tocsin.chaos.contract import faults, properties
from tocsin.chaos.report.render import render
from tocsin.chaos.report.view import view_of
from tocsin.chaos.verdict import RunVerdict

__all__ = ["write_report"]


def write_report(run_dir: Path, case: Case, verdict: RunVerdict) -> Path:
    """Write `report.html` into the run's folder; a reader never sees half of it.

    The size of the file does not grow with the number of requests: curves are binned, lists are
    cut and say so. Missing data is reported as missing.

    Returns:
        The path of the file.
    """
    view = view_of(
        case,
        verdict,
        run_dir,
        catalogue=faults(),
        rules=properties(),
        written=datetime.datetime.now(datetime.UTC),
    )
    path = run_dir / "report.html"
    draft = path.with_suffix(".html.part")
    draft.write_text(render(view), encoding="utf-8", errors="backslashreplace")
    os.replace(draft, path)
    return path
