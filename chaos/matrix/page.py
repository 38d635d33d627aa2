"""A matrix for people: a table for the terminal, a page in Markdown, and an exit code."""

from collections.abc import Sequence
from typing import Literal

from rich.table import Table

from tocsin.chaos.matrix.document import Conclusion, Matrix, Row
from tocsin.chaos.verdict import EXIT_FAIL, EXIT_INVALID, EXIT_PASS, EXIT_UNKNOWN
from tocsin.core.markdown import cell

_EXITS = (
    (EXIT_FAIL, (Conclusion.HARM, Conclusion.WEAK)),
    (EXIT_INVALID, (Conclusion.INVALID,)),
    (EXIT_UNKNOWN, (Conclusion.EMPTY,)),
)
_TONES = {
    Conclusion.CAUGHT: "green",
    Conclusion.UNWATCHED: "yellow",
    Conclusion.NOT_RUN: "dim",
}
_HEAD = ("fault", "where", "fired", "seen", "MTTD p50 / p99", "verdict", "seen by")
_WIDE = 110


def exit_code(rows: Sequence[Row]) -> int:
    """1: harm or too low a recall; 3: something did not fire; 2: a required cell is empty."""
    found = {row.conclusion for row in rows}
    return next((code for code, worse in _EXITS if found & set(worse)), EXIT_PASS)


def matrix_table(matrix: Matrix, width: int) -> Table:
    """One line a kind; `+3` are detectors that saw it and are not meant to.

    Args:
        width: of the terminal, in characters; in a narrow one detectors matter more than places
            and times, which the files have.
    """
    left_out = ("where", "MTTD p50 / p99") if width < _WIDE else ()
    table = Table(box=None, pad_edge=False)
    for name in _HEAD:
        if name not in left_out:
            table.add_column(name, no_wrap=name != "seen by", justify=_justify(name))
    for row in matrix.rows:
        cells = dict(zip(_HEAD, _cells(row), strict=True))
        tone = _TONES.get(row.conclusion, "bold red")
        cells["verdict"] = f"[{tone}]{cells['verdict']}[/]"
        table.add_row(*(text for name, text in cells.items() if name not in left_out))
    return table


def matrix_lines(matrix: Matrix) -> list[str]:
    """What is not well, a line each, and the sum."""
    fine = (Conclusion.CAUGHT, Conclusion.NOT_RUN, Conclusion.UNWATCHED)
    lines = [
        f"{row.conclusion}: {row.kind}: {row.why}"
        for row in matrix.rows
        if row.conclusion not in fine
    ]
    lines += [
        f"not run: {row.kind}: {row.why}"
        for row in matrix.rows
        if row.conclusion is Conclusion.NOT_RUN
    ]
    if matrix.stale:
        lines.append(
            f"made by other sources than these (--fresh redoes): {', '.join(matrix.stale)}"
        )
    return [*lines, summary(matrix)]


def summary(matrix: Matrix) -> str:
    """One sentence."""
    run = [row for row in matrix.rows if row.conclusion is not Conclusion.NOT_RUN]
    watched = [row for row in run if row.expected]
    fired = sum(row.fired for row in watched)
    seen = sum(row.seen for row in watched)
    caught = sum(row.conclusion is Conclusion.CAUGHT for row in run)
    return (
        f"{caught} of {len(run)} kinds are caught; {seen} of {fired} occurrences were seen in time "
        f"by a detector that is meant to; seed {matrix.seed}, {matrix.wall_s:.0f} s"
    )


def matrix_markdown(matrix: Matrix) -> str:
    """The whole matrix as a page: the rows, then the grid of faults and detectors."""
    names = columns(matrix.rows)
    lines = ["# Fault × detector matrix", "", f"{summary(matrix)}.", ""]
    lines += [f"- {line}" for line in matrix_lines(matrix)[:-1]]
    lines += ["", f"| {' | '.join(_HEAD)} |", "|---" * len(_HEAD) + "|"]
    lines += [f"| {' | '.join(cell(text) for text in _cells(row))} |" for row in matrix.rows]
    lines += [
        "",
        "For how many occurrences each detector alarmed; **bold**: it is meant to see the fault.",
        "**·**: it is meant to and never did, which is fine where another one of the row did.",
        "",
        f"| fault | {' | '.join(names)} |",
        "|---" * (len(names) + 1) + "|",
    ]
    for row in matrix.rows:
        lines.append(f"| {row.kind} | {' | '.join(_grid_cell(row, name) for name in names)} |")
    return "\n".join([*lines, ""])


def columns(rows: Sequence[Row]) -> tuple[str, ...]:
    """Detectors that saw something or were meant to, by layer."""
    names = {name for row in rows for name in (*row.detectors, *row.expected)}
    layers = ("numerical", "memory", "state", "semantic", "service")

    def place(name: str) -> tuple[int, str]:
        layer = name.partition(".")[0]
        return (layers.index(layer) if layer in layers else len(layers), name)

    return tuple(sorted(names, key=place))


def _grid_cell(row: Row, name: str) -> str:
    number, meant = row.detectors.get(name, 0), name in row.expected
    if not number:
        return "**·**" if meant and row.fired else ""
    return f"**{number}**" if meant else str(number)


def _cells(row: Row) -> list[str]:
    if row.conclusion is Conclusion.NOT_RUN:
        return [row.kind, "", "", "", "", str(row.conclusion), row.why]
    times = (
        f"{row.mttd_ms_p50:.0f} / {row.mttd_ms_p99:.0f} ms"
        if row.mttd_ms_p50 is not None and row.mttd_ms_p99 is not None
        else ""
    )
    meant = [f"{name} {row.detectors.get(name, 0)}" for name in row.expected]
    others = sum(name not in row.expected for name in row.detectors)
    text = " · ".join(meant) + (f" +{others}" if others else "")
    return [
        row.kind,
        str(row.where),
        f"{row.fired}/{row.planned}",
        f"{row.seen}/{row.fired}",
        times,
        str(row.conclusion),
        text,
    ]


def _justify(name: str) -> Literal["left", "right"]:
    return "right" if name in ("fired", "seen", "MTTD p50 / p99") else "left"
