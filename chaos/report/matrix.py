"""Which detector saw which fault: a grid of rows of faults by columns of detectors."""

from markupsafe import Markup

from tocsin.chaos.report import svg
from tocsin.chaos.report.model import FaultRow

_CELL = 26.0
_GUTTER = 190.0


def matrix_svg(rows: tuple[FaultRow, ...]) -> Markup:
    """Filled: seen so many times. Framed: meant to see it. Amber: saw it without being meant to."""
    detectors = _columns(rows)
    heading = 14 + max((len(name) for name in detectors), default=0) * 4.7
    width = _GUTTER + _CELL * len(detectors) + 260
    body = [_column_name(k, name, heading) for k, name in enumerate(detectors)]
    for k, row in enumerate(rows):
        body += _row(row, detectors, heading + k * _CELL)
    return svg.element(
        "svg",
        svg.element("title", "Faults by the detectors that saw them"),
        *body,
        viewBox=f"0 0 {svg.number(width)} {svg.number(heading + len(rows) * _CELL + 4)}",
        class_="matrix",
        role="img",
        width=width,
    )


def _columns(rows: tuple[FaultRow, ...]) -> tuple[str, ...]:
    """Detectors that saw something or were meant to, those of one layer together."""
    names = {one.detector for row in rows for one in row.detectors}
    meant = {name for row in rows if row.fired for name in row.expected}
    layers = ("numerical", "memory", "state", "semantic", "service")

    def place(name: str) -> tuple[int, str]:
        layer = name.partition(".")[0]
        return (layers.index(layer) if layer in layers else len(layers), name)

    return tuple(sorted(names | meant, key=place))


def _column_name(k: int, name: str, heading: float) -> Markup:
    x = _GUTTER + (k + 0.5) * _CELL
    return svg.element(
        "text",
        name,
        class_="name",
        transform=f"translate({svg.number(x + 2)} {svg.number(heading - 8)}) rotate(-42)",
    )


def _row(row: FaultRow, detectors: tuple[str, ...], y: float) -> list[Markup]:
    middle = y + _CELL / 2 + 4
    parts = [
        svg.text(_GUTTER - 12, middle, _short_name(row.kind), "name", "end"),
        svg.line(0, y + _CELL, _GUTTER + _CELL * len(detectors), y + _CELL, "hair"),
    ]
    seen = {one.detector: one for one in row.detectors}
    for k, name in enumerate(detectors):
        meant, count = name in row.expected, seen[name].count if name in seen else 0
        if meant or count:
            parts.append(_cell(row, name, count, meant, _GUTTER + k * _CELL, y))
    if row.missing:
        x = _GUTTER + _CELL * len(detectors) + 10
        parts.append(svg.text(x, middle, row.missing, "absent bad"))
    return parts


def _cell(row: FaultRow, name: str, count: int, meant: bool, x: float, y: float) -> Markup:
    role = "meant to see it" if meant else "not among its expected detectors"
    tip = f"{row.kind} · {name}\nsaw {count} of {row.fired} ({role})"
    state = ("hit" if meant else "stray") if count else "meant"
    shape = svg.rect(x + 3, y + 3, _CELL - 6, _CELL - 6, f"cell {state}", tip, 3)
    if not count:
        return shape
    words = svg.element(
        "text",
        str(count) if count < 1000 else "∗",
        x=x + _CELL / 2,
        y=y + _CELL / 2 + 3.8,
        class_="count",
        text_anchor="middle",
        pointer_events="none",
    )
    return svg.group([shape, words])


def _short_name(kind: str) -> str:
    """The id alone where a kind is used twice: the gutter has no room for both."""
    _, _, own = kind.partition(" (")
    return own.removesuffix(")") or kind
