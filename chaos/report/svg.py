"""SVG elements as escaped markup: the few shapes that the report's charts are made of.

Colours come from classes in the style sheet, so one drawing serves light, dark and paper.
"""

from collections.abc import Iterable, Sequence

from markupsafe import Markup, escape

from tocsin.chaos.report.wording import legible


def element(name: str, *children: str, **attributes: object) -> Markup:
    """One element; every attribute and every child that is not markup is escaped.

    Attribute names may end in an underscore (`class_`) and use `_` for `-`; None leaves one out.
    """
    parts = [Markup("<%s") % Markup(name)]
    for key, value in attributes.items():
        if value is None:
            continue
        text = number(value) if isinstance(value, float) else legible(str(value))
        parts.append(Markup(' %s="%s"') % (Markup(key.rstrip("_").replace("_", "-")), text))
    body = Markup("").join(
        child if isinstance(child, Markup) else escape(legible(child)) for child in children
    )
    return Markup("").join(parts) + Markup(">%s</%s>") % (body, Markup(name))


def number(value: float) -> str:
    """A coordinate with one decimal, without a needless `.0`."""
    return f"{value:.1f}".removesuffix(".0")


def group(children: Iterable[str], **attributes: object) -> Markup:
    """A `g` element."""
    return element("g", *children, **attributes)


def text(x: float, y: float, content: str, class_: str, anchor: str = "start") -> Markup:
    """A line of text whose baseline is at y."""
    return element(
        "text", content, x=x, y=y, class_=class_, text_anchor=None if anchor == "start" else anchor
    )


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    """A straight line."""
    return element("path", d=f"M{number(x1)} {number(y1)}L{number(x2)} {number(y2)}", class_=class_)


def rect(
    x: float, y: float, width: float, height: float, class_: str, tip: str = "", radius: float = 0
) -> Markup:
    """A rectangle; with a tip it explains itself under the pointer."""
    return element(
        "rect",
        *([element("title", tip)] if tip else []),
        x=x,
        y=y,
        width=max(width, 0.0),
        height=height,
        class_=f"{class_} told" if tip else class_,
        rx=radius or None,
    )


def curve(points: Sequence[tuple[float, float | None]], class_: str) -> Markup:
    """A line through the points, broken where y is None; a lone point becomes a dot."""
    pieces: list[str] = []
    for run in _runs(points):
        if len(run) == 1:
            x, y = run[0]
            pieces.append(f"M{number(x - 1)} {number(y)}h2")
        else:
            pieces.append("M" + "L".join(f"{number(x)} {number(y)}" for x, y in run))
    return element("path", d="".join(pieces), class_=class_)


def band(points: Sequence[tuple[float, float | None, float | None]], class_: str) -> Markup:
    """The area between two curves, broken where either is None; points are (x, low y, high y)."""
    low_runs = _runs([(x, a if b is not None else None) for x, a, b in points])
    high_runs = _runs([(x, b if a is not None else None) for x, a, b in points])
    pieces = []
    for low, high in zip(low_runs, high_runs, strict=True):
        if len(low) > 1:
            there = "L".join(f"{number(x)} {number(y)}" for x, y in high)
            back = "L".join(f"{number(x)} {number(y)}" for x, y in reversed(low))
            pieces.append(f"M{there}L{back}Z")
    return element("path", d="".join(pieces), class_=class_)


def _runs(points: Sequence[tuple[float, float | None]]) -> list[list[tuple[float, float]]]:
    """The points cut at every None."""
    runs: list[list[tuple[float, float]]] = [[]]
    for x, y in points:
        if y is None:
            if runs[-1]:
                runs.append([])
        else:
            runs[-1].append((x, y))
    return [run for run in runs if run]
