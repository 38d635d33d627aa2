"""A comparison as tables for the terminal."""

from collections.abc import Sequence
from io import StringIO

from rich.console import Console
from rich.table import Table

from tocsin.chaos.compare.model import Change, Comparison, FaultChange, PhaseReading
from tocsin.chaos.report.wording import milliseconds

_WIDTH = 120
_FIGURES = (
    ("first token p50", "ttft_ms_p50"),
    ("first token p99", "ttft_ms_p99"),
    ("between tokens p50", "gap_ms_p50"),
    ("between tokens p99", "gap_ms_p99"),
)
_SHARES = (("without an answer", "failed_share"), ("degraded", "degraded_share"))


def comparison_text(found: Comparison) -> str:
    """What differs, the verdict first; ids are never cut."""
    out = StringIO()
    console = Console(file=out, width=_WIDTH, no_color=True, highlight=False, markup=False)
    plan = "same plan" if found.same_plan else "different plans"
    console.print(f"A  {found.a.run}  {found.a.verdict}, exit code {found.a.exit_code}")
    console.print(f"B  {found.b.run}  {found.b.verdict}, exit code {found.b.exit_code}")
    console.print(f"{'B is worse' if found.worse else 'B is no worse'} ({plan})")
    for one in found.worse:
        console.print(f"  - {one}", soft_wrap=True)
    for name, a, b in found.differences:
        console.print(f"  differs: {name}: {a} | {b}", soft_wrap=True)
    _table(
        console,
        ("property", "A", "B", "change"),
        [
            (one.id, one.a or "not judged", one.b or "not judged", str(one.change))
            for one in found.properties
            if one.change is not Change.SAME
        ],
    )
    _table(
        console,
        ("fault", "change", "fired", "detected", "to detect p99", "recovery"),
        [_fault(one) for one in found.faults],
    )
    _table(
        console,
        ("phase", "figure", "A", "B", "B / A"),
        [row for phase in found.phases for row in _phase(phase.name, phase.a, phase.b)],
    )
    _table(
        console,
        ("same requests", "phase", "pairs", "B / A", "95 % interval"),
        [
            (
                one.measure,
                one.phase,
                str(one.pairs),
                "too few pairs" if one.ratio is None else f"{one.ratio:.2f}",
                "" if one.ratio is None else f"{one.low:.2f} to {one.high:.2f}",
            )
            for one in found.paired
        ],
    )
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _table(console: Console, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    if not rows:
        return
    table = Table(box=None, pad_edge=False)
    for i, name in enumerate(header):
        table.add_column(name, no_wrap=i == 0)
    for row in rows:
        table.add_row(*row)
    console.print()
    console.print(table)


def _fault(one: FaultChange) -> tuple[str, ...]:
    sides = [side for side in (one.a, one.b) if side is not None]

    def both(of: Sequence[str]) -> str:
        return " → ".join(of)

    return (
        one.id,
        str(one.change),
        both([f"{side.fired}/{side.planned}" for side in sides]),
        both([f"{side.detected}/{side.fired}" for side in sides]),
        both([milliseconds(side.mttd_ms_p99) for side in sides]),
        both([milliseconds(side.recover_ms_max) for side in sides]),
    )


def _phase(name: str, a: PhaseReading | None, b: PhaseReading | None) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for label, field in _FIGURES:
        one, other = (getattr(side, field, None) for side in (a, b))
        ratio = f"{other / one:.2f}" if one and other else ""
        rows.append((name, label, milliseconds(one), milliseconds(other), ratio))
    for label, field in _SHARES:
        one, other = (getattr(side, field, None) for side in (a, b))
        rows.append((name, label, _percent(one), _percent(other), ""))
    return rows


def _percent(value: float | None) -> str:
    return "no data" if value is None else f"{100 * value:.1f} %"
