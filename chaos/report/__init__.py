"""The report of a chaos run: one HTML file that needs no network and says what is not known."""

import datetime
from pathlib import Path

from tocsin.chaos.case import Case
from tocsin.chaos.contract import faults, properties
from tocsin.chaos.report.render import render
from tocsin.chaos.report.view import view_of
from tocsin.chaos.store import write_atomic
from tocsin.chaos.verdict import RunVerdict

__all__ = ["SIZE_BYTES_MAX", "write_report"]

SIZE_BYTES_MAX = 2_000_000
_MARKS_MOST = (2400, 600, 60)
"""What is more than an eye can tell apart; fewer where long labels make the file too large."""


def write_report(run_dir: Path, case: Case, verdict: RunVerdict) -> Path:
    """Write `report.html` into the run's folder; a reader never sees half of it.

    The size of the file does not grow with the number of requests: curves are binned, lists are
    cut and say so. Missing data is reported as missing.

    Returns:
        The path of the file.
    """
    written = datetime.datetime.now(datetime.UTC)
    for marks_most in _MARKS_MOST:
        view = view_of(
            case,
            verdict,
            run_dir,
            catalogue=faults(),
            rules=properties(),
            written=written,
            marks_most=marks_most,
        )
        page = render(view).encode("utf-8", "backslashreplace")
        if len(page) <= SIZE_BYTES_MAX:
            break
    path = run_dir / "report.html"
    write_atomic(path, page)
    return path
