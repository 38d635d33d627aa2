"""Lanes of the timeline: one row for each kind of fault and for each replica."""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from tocsin.chaos.report import svg
from tocsin.chaos.report.model import Lane, Mark, MarkKind, Span
from tocsin.chaos.report.scale import Axis, seconds_text


@dataclass(frozen=True, slots=True)
class Layout:
    """One drawing for one width of screen; text keeps its size, space does not.

    Attributes:
        gutter: pixels left of the axis for names; 0 writes each name above its lane.
        key: makes the ids of this drawing's patterns unique in the page.
    """

    key: str
    width: float
    gutter: float
    right: float
    lane_height: float
    panel_height: float
    time_pieces: int
    value_pieces: int

    @property
    def names_above(self) -> bool:
        """There is no gutter: names stand above what they name."""
        return self.gutter < 40


WIDE = Layout("wide", 1136, 172, 14, 25, 92, 12, 3)
NARROW = Layout("narrow", 344, 6, 10, 25, 84, 4, 3)

_ROWS = {MarkKind.FIRED: 0.26, MarkKind.DETECTED: 0.52, MarkKind.HEALED: 0.78}
_SHAPES = {
    MarkKind.FIRED: "M-3.6 -2.6h7.2L0 3.2Z",
    MarkKind.DETECTED: "M0 -3.8L3.8 0L0 3.8L-3.8 0Z",
    MarkKind.HEALED: "M-3 0a3 3 0 1 0 6 0a3 3 0 1 0 -6 0Z",
    MarkKind.MISSED: "M-3.6 -3.6L3.6 3.6M3.6 -3.6L-3.6 3.6",
}


def lane_heading(lane: Lane, y: float, layout: Layout) -> tuple[Markup, float]:
    """The lane's name, and the y at which its drawing begins."""
    if layout.names_above:
        return svg.text(layout.gutter, y + 12, lane.name, "name"), y + 16
    middle = y + layout.lane_height / 2 + 4
    return svg.text(layout.gutter - 12, middle, _fit(lane.name, 24), "name", "end"), y


def fault_lane(lane: Lane, y: float, axis: Axis, layout: Layout) -> Markup:
    """Windows as bars, marks stacked by kind: what coincides in time stays apart to the eye."""
    height = layout.lane_height
    parts = [svg.line(axis.start, y + height, axis.end, y + height, "hair")]
    for span in lane.spans:
        left, right = axis(span.start_s), axis(span.end_s)
        parts.append(
            svg.rect(left - 1, y + 3, max(right - left, 0) + 2, height - 6, "held", span.label, 2)
        )
    parts.extend(_mark(mark, y, axis, height) for mark in lane.marks)
    if not lane.marks:
        parts.append(svg.text(axis.start + 4, y + height / 2 + 4, "never fired", "absent"))
    return svg.group(parts)


def replica_lane(lane: Lane, y: float, axis: Axis, layout: Layout) -> Markup:
    """A bar for each state: plain up, hatched stalled, crossed out down."""
    height = layout.lane_height
    if not lane.spans:
        return svg.text(axis.start + 4, y + height / 2 + 4, "no data", "absent")
    bars = [_state(span, y + 6, height - 11, axis, layout) for span in lane.spans]
    broken = [span for span in lane.spans if span.state != "up"]
    words = [
        _state_words(span, broken[k + 1 : k + 2], y + height - 8.5, axis)
        for k, span in enumerate(broken)
    ]
    return svg.group([*bars, *words])


def patterns(layout: Layout) -> Markup:
    """Hatching for stalled and down, so that neither rests on colour alone."""
    stalled = svg.element("path", d="M-1 7L7 -1M-1 1L1 -1M5 7L7 5", class_="hatch-stalled")
    down = svg.element("path", d="M0 0L6 6M6 0L0 6", class_="hatch-down")
    return svg.element(
        "defs",
        *(
            svg.element(
                "pattern",
                drawing,
                id=f"{name}-{layout.key}",
                width=6,
                height=6,
                patternUnits="userSpaceOnUse",
            )
            for name, drawing in (("stalled", stalled), ("down", down))
        ),
    )


def _mark(mark: Mark, y: float, axis: Axis, height: float) -> Markup:
    """One mark with its explanation and a target wide enough for a finger."""
    x = axis(mark.t_s)
    if mark.kind is MarkKind.PLANNED:
        return svg.line(x, y + 2, x, y + height - 2, "planned")
    row = y + height * _ROWS.get(mark.kind, 0.52)
    children = [
        svg.element("title", mark.label),
        svg.element("path", d="M-6 -5h12v10h-12Z", class_="target"),
        svg.element("path", d=_SHAPES[mark.kind], class_=f"mark {mark.kind.value}"),
    ]
    place = f"translate({svg.number(x)} {svg.number(row)})"
    return svg.group(children, transform=place, class_="told")


def _state(span: Span, y: float, height: float, axis: Axis, layout: Layout) -> Markup:
    left, width = axis(span.start_s), axis(span.end_s) - axis(span.start_s)
    parts = [svg.rect(left, y, max(width, 1.5), height, f"state {span.state}", span.label, 2)]
    if span.state in ("stalled", "down"):
        fill = f"url(#{span.state}-{layout.key})"
        parts.append(
            svg.element(
                "rect",
                x=left,
                y=y,
                width=max(width, 1.5),
                height=height,
                fill=fill,
                pointer_events="none",
            )
        )
    return svg.group(parts)


def _state_words(span: Span, following: Sequence[Span], y: float, axis: Axis) -> Markup:
    """How long it lasted, written behind the bar where there is room."""
    words = f"{span.state} {seconds_text(round(span.end_s - span.start_s, 1))}"
    begin = axis(span.end_s) + 5
    end = axis(following[0].start_s) if following else axis.end
    return svg.text(begin, y, words, "inline") if end - begin > 6.4 * len(words) else Markup("")


def _fit(name: str, letters: int) -> str:
    """A name short enough for the gutter."""
    return name if len(name) <= letters else name[: letters - 1] + "…"
