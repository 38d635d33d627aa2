"""The fault catalogue of LLM serving: 48 rows, and which of them our faults can make.

A row is a way in which serving goes wrong; a fault is our declaration that makes it happen. A row
that no declared fault makes says why: then nothing is claimed of it.
"""

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tocsin.chaos.catalogue_rows import ROWS
from tocsin.chaos.contract import faults
from tocsin.core.markdown import anchor, cell

_REASON_WIDTH = 58


@dataclass(frozen=True, slots=True)
class CatalogueRow:
    """One row, as it stands with the faults that are declared.

    Attributes:
        number: "1" to "48", and "+" for what only Kubernetes has.
        name: of the row in the catalogue; place: what it strikes.
        kinds: ids of the declared faults that make it.
        note: what of the row is made by a setting, or is left out, where the kinds do not say it.
        reason: why nothing makes it; empty where something does.
    """

    number: str
    name: str
    place: str
    kinds: tuple[str, ...]
    note: str
    reason: str

    @property
    def runnable(self) -> bool:
        """Whether a declared fault makes it."""
        return bool(self.kinds)


def catalogue_rows(declared: Iterable[str] | None = None) -> tuple[CatalogueRow, ...]:
    """All rows in the order of the catalogue.

    Args:
        declared: ids of faults; None: all that are declared.
    """
    ids = sorted(faults() if declared is None else declared)
    rows = []
    for source in ROWS:
        kinds = tuple(
            kind for pattern in source.kinds for kind in ids if fnmatchcase(kind, pattern)
        )
        reason = "" if kinds else source.reason
        rows.append(
            CatalogueRow(source.number, source.name, source.place, kinds, source.note, reason)
        )
    return tuple(rows)


def catalogue_summary(rows: Iterable[CatalogueRow]) -> str:
    """How many rows can be run here, in one sentence."""
    numbered = [row for row in rows if row.number.isdecimal()]
    runnable = sum(row.runnable for row in numbered)
    kinds = sum(len(row.kinds) for row in rows)
    return f"{runnable} of {len(numbered)} rows can be run here, by {kinds} faults."


def catalogue_table() -> str:
    """The catalogue as text of aligned columns, for a terminal."""
    rows = catalogue_rows()
    names = max(len(row.name) for row in rows)
    kinds = max(len(kind) for row in rows for kind in row.kinds)
    detectors = max(len(name) for unit in faults().values() for name in unit.expect)
    lines = [
        f"{'#':>2}  {'row':<{names}}  {'fault':<{kinds}}  {'seen by one of':<{detectors}}  alert"
    ]
    for row in rows:
        lead = f"{row.number:>2}  {row.name:<{names}}"
        for kind in row.kinds:
            unit = faults()[kind]
            for at, detector in enumerate(unit.expect):
                shown, alert = (kind, unit.priority) if at == 0 else ("", "")
                cells = f"{lead}  {shown:<{kinds}}  {detector:<{detectors}}  {alert}"
                lines.append(cells.rstrip())
                lead = " " * len(lead)
        said = (row.reason and f"not run here: {row.reason}") or row.note
        for part in textwrap.wrap(said, _REASON_WIDTH):
            lines.append(f"{lead}  {part}")
            lead = " " * len(lead)
    return "\n".join([*lines, "", catalogue_summary(rows), ""])


def catalogue_markdown(declared: Iterable[str] | None = None) -> str:
    """The catalogue as a Markdown table, whose faults link to their sections.

    Args:
        declared: ids of faults; None: all that are declared.
    """
    rows = catalogue_rows(declared)
    lines = [
        catalogue_summary(rows),
        "",
        "| # | row | strikes | faults | what is not run here, and why |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        links = ", ".join(f"[{kind}](#{anchor(kind)})" for kind in row.kinds)
        said = cell(row.reason or row.note)
        lines.append(f"| {row.number} | {cell(row.name)} | {row.place} | {links} | {said} |")
    return "\n".join([*lines, ""])
