"""The table that `make bench` prints: what each detector costs, and beside it what it catches."""

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from tocsin.bench.overhead.coverage import Caught
from tocsin.bench.overhead.engines import NAME as ENGINE
from tocsin.bench.overhead.engines import NOISE as ENGINE_NOISE
from tocsin.bench.overhead.schema import Detail, Overhead, OverheadRow, Place, Unmeasured
from tocsin.bench.overhead.variants import NOISE, OURS

WIDTH_MIN = 110

Coverage = Mapping[tuple[str, str, str], Caught]


def print_tables(report: Overhead, coverage: Coverage, console: Console | None = None) -> None:
    """One table a kind of step, then how to read them."""
    console = console or _console()
    details = {_key(detail): detail for detail in report.details}
    places: list[Place] = [*report.rows, *report.unmeasured]
    for kind in dict.fromkeys(_kind(place) for place in places):
        of_kind = [place for place in places if _kind(place) == kind]
        for in_engine in (False, True):
            group = [place for place in of_kind if _in_engine(place) is in_engine]
            if group:
                _print_one(report, group, details, coverage, console)
    _print_legend(report, coverage, console)


def _console() -> Console:
    """Wide enough for the table where nobody says how wide it is."""
    console = Console()
    return console if console.is_terminal else Console(width=max(console.width, WIDTH_MIN))


def _print_one(
    report: Overhead,
    places: list[Place],
    details: Mapping[tuple[str, ...], Detail],
    coverage: Coverage,
    console: Console,
) -> None:
    console.print(_title(report, places[0]), markup=False, highlight=False)
    table = Table(box=None, pad_edge=False)
    table.add_column("detector", no_wrap=True)
    for name in ("overhead", "quartiles", "wall", "pairs", "caught in time", "low95", ""):
        table.add_column(name, justify="right", no_wrap=True)
    notes: list[str] = []
    for place in places:
        cells, note = _cells(place, details, coverage)
        if note and note not in notes:
            notes.append(note)
        table.add_row(*cells, f"({notes.index(note) + 1})" if note else "")
    console.print(table)
    for number, note in enumerate(notes, start=1):
        console.print(f"({number}) {note}", markup=False, highlight=False, soft_wrap=True)
    console.print()


def _cells(
    place: Place, details: Mapping[tuple[str, ...], Detail], coverage: Coverage
) -> tuple[tuple[str, ...], str]:
    """The cells of one row, and its note."""
    label = place.name if place.profile in ("default", "bare") else f"{place.name} {place.profile}"
    caught, low = _caught(place, coverage)
    if not isinstance(place, OverheadRow):
        reason = place.reason if isinstance(place, Unmeasured) else ""
        return (label, "—", "", "", "", caught, low), reason
    detail = details.get(_key(place))
    notes = [detail.note] if detail and detail.note else []
    if detail and not detail.resolved and place.name not in (NOISE, ENGINE_NOISE):
        notes.append("quartiles wider than the effect")
    cells = (
        label,
        _percent(place.ratio_median),
        f"{_percent(place.ratio_q25)} … {_percent(place.ratio_q75)}",
        _percent(detail.wall_ratio_median) if detail else "",
        str(place.pairs),
        caught,
        low,
    )
    return cells, "; ".join(notes)


def _caught(place: Place, coverage: Coverage) -> tuple[str, str]:
    if place.name in (NOISE, ENGINE_NOISE):
        return "", ""
    # The engine's guard is the same checks under the same profile.
    name = OURS if place.name == ENGINE else place.name
    found = coverage.get((name, place.profile, place.dtype))
    if found is None:
        return "?", ""
    return f"{found.caught / found.harmful:.1%} of {found.harmful}", f"{found.low95:.1%}"


def _print_legend(report: Overhead, coverage: Coverage, console: Console) -> None:
    how = report.protocol
    lines = [
        f"{how.clock[0].upper()}{how.clock[1:]} on {how.device}, {how.torch_threads} torch "
        f"thread(s), seed {how.seed}, torch {how.torch}; every variant once a round in a "
        "new order, ratio to the bare step of the same round.",
        f"{NOISE} is the bare step measured twice: differences below its quartiles are noise. "
        "`wall` is the same ratio of wall clock, for comparison only.",
    ]
    if coverage:
        lines.append(
            "caught in time: of the faults that change an answer, those seen before a wrong token "
            "left, under the same profile; low95: lower end of the 95 % Wilson interval."
        )
    else:
        lines.append("Coverage is not known here (?): run make campaign.")
    if not report.complete:
        lines.append("The run did not come to its end; what is missing is marked —.")
    for line in lines:
        console.print(line, markup=False, highlight=False)


def _title(report: Overhead, place: Place) -> str:
    in_engine = _in_engine(place)
    subject = "engine" if in_engine else "transformers"
    work = next(
        (
            one
            for one in report.work
            if one.subject == subject
            and (one.mode, one.dtype, one.phase, one.batch) == _kind(place)
        ),
        None,
    )
    text = f"{place.phase}, batch {place.batch}, {place.dtype}, {place.mode}"
    if in_engine:
        text = f"reference engine: {text}"
    if work is None:
        return text
    return (
        f"{text}: {work.layers} layers, {work.positions} positions, bare step "
        f"{work.bare_cpu_ms:.1f} ms CPU, {work.bare_wall_ms:.1f} ms wall"
    )


def _in_engine(place: Place) -> bool:
    return place.name in (ENGINE, ENGINE_NOISE)


def _kind(place: Place) -> tuple[str, str, str, int]:
    return place.mode, place.dtype, place.phase, place.batch


def _key(place: Place) -> tuple[str, ...]:
    return (*map(str, _kind(place)), place.name, place.profile)


def _percent(ratio: float) -> str:
    return f"{(ratio - 1) * 100:+.1f} %"
