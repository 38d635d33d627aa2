"""The timeline: faults, replicas, latency and throughput above one another on one time axis."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from tocsin.chaos.report import svg
from tocsin.chaos.report.lanes import (
    Layout,
    fault_lane,
    lane_heading,
    patterns,
    replica_lane,
)
from tocsin.chaos.report.model import Series, Timeline
from tocsin.chaos.report.scale import (
    Axis,
    amount_text,
    seconds_text,
    ticks,
    time_axis,
    time_step,
    value_axis,
)

Values = tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart below the lanes: a line and, for latencies, the band up to its p99."""

    name: str
    unit: str
    middle: Values
    upper: Values | None
    colour: str


def panels_of(series: Series) -> tuple[Panel, ...]:
    """The charts in the order in which they are drawn."""
    return (
        Panel("First token", "ms, p50–p99", series.ttft_p50_ms, series.ttft_p99_ms, "ttft"),
        Panel("Between tokens", "ms, p50–p99", series.gap_p50_ms, series.gap_p99_ms, "gap"),
        Panel("Throughput", "tokens/s", series.tokens_per_s, None, "rate"),
    )


def timeline_svg(timeline: Timeline, layout: Layout) -> Markup:
    """The whole drawing for one width of screen."""
    axis = time_axis(timeline.end_s, layout.gutter, layout.width - layout.right)
    body: list[Markup] = []
    y = 18.0
    for lane in timeline.faults:
        heading, top = lane_heading(lane, y, layout)
        body += [heading, fault_lane(lane, top, axis, layout)]
        y = top + layout.lane_height
    y += 10
    for lane in timeline.replicas:
        heading, top = lane_heading(lane, y, layout)
        body += [heading, replica_lane(lane, top, axis, layout)]
        y = top + layout.lane_height
    for panel in panels_of(timeline.series):
        drawing, y = _panel(panel, timeline.series.edges_s, y, axis, layout)
        body.append(drawing)
    drawing, y = _failures(timeline.series, y, axis, layout)
    body.append(drawing)
    bottom = y + 4
    back = [
        patterns(layout),
        _windows(timeline, axis, 16, bottom),
        _time_grid(axis, bottom, layout),
    ]
    cross = svg.line(0, 14, 0, bottom, "cross")
    return svg.element(
        "svg",
        svg.element("title", "Faults, replicas, latency and throughput over the time of the run"),
        *back,
        *body,
        cross,
        viewBox=f"0 0 {svg.number(layout.width)} {svg.number(bottom + 20)}",
        class_=f"timeline {layout.key}",
        role="img",
        data_start=axis.start,
        data_end=axis.end,
        data_seconds=axis.high,
    )


def _windows(timeline: Timeline, axis: Axis, top: float, bottom: float) -> Markup:
    """Shading over everything for as long as any fault was active."""
    return svg.group(
        svg.rect(
            axis(span.start_s) - 0.5,
            top,
            axis(span.end_s) - axis(span.start_s) + 1,
            bottom - top,
            "window",
        )
        for span in timeline.windows
    )


def _time_grid(axis: Axis, bottom: float, layout: Layout) -> Markup:
    """Seconds, written above and below: the drawing is taller than a screen."""
    step = time_step(axis.high, layout.time_pieces)
    parts = []
    for k in range(int(axis.high / step + 1e-9) + 1):
        x = axis(k * step)
        anchor = "middle" if x - layout.gutter > 8 else "start"
        anchor = "end" if x > axis.end - 8 else anchor
        parts.append(svg.line(x, 16, x, bottom, "grid"))
        for y in (11.0, bottom + 14):
            parts.append(svg.text(x, y, seconds_text(k * step), "tick", anchor))
    return svg.group(parts)


def _panel(
    panel: Panel, edges_s: tuple[float, ...], y: float, axis: Axis, layout: Layout
) -> tuple[Markup, float]:
    """One chart and the y below it."""
    parts, top = _panel_heading(panel.name, panel.unit, y + 16, layout)
    bottom = top + layout.panel_height
    known = [value for value in (*panel.middle, *(panel.upper or ())) if value is not None]
    parts.append(svg.line(axis.start, bottom, axis.end, bottom, "base"))
    if not known:
        parts.append(svg.text(axis.start + 4, bottom - 8, "no data: no token arrived", "absent"))
        return svg.group(parts), bottom
    scale = value_axis(known, bottom, top + 4)
    heading = _panel_heading(panel.name, panel.unit + scale.note, y + 16, layout)[0]
    values = ticks(scale, layout.value_pieces)
    parts = [
        *heading,
        svg.line(axis.start, bottom, axis.end, bottom, "base"),
        *(svg.line(axis.start, scale(v), axis.end, scale(v), "hair") for v in values),
        *_curves(panel, edges_s, axis, scale),
        *(_value_tick(scale(v), amount_text(v), axis, layout) for v in values),
    ]
    return svg.group(parts), bottom


def _curves(panel: Panel, edges_s: tuple[float, ...], axis: Axis, scale: Axis) -> Iterator[Markup]:
    """The line through the middles of the bins, and the band up to the upper one."""
    middles = [(a + b) / 2 for a, b in pairwise(edges_s)]
    lower = [(axis(t), scale.optional(v)) for t, v in zip(middles, panel.middle, strict=True)]
    if panel.upper is not None:
        upper = [scale.optional(v) for v in panel.upper]
        both = [(x, low, high) for (x, low), high in zip(lower, upper, strict=True)]
        yield svg.band(both, f"band {panel.colour}")
        yield svg.curve([(x, high) for x, _, high in both], f"upper {panel.colour}")
    yield svg.curve(lower, f"curve {panel.colour}")


def _failures(series: Series, y: float, axis: Axis, layout: Layout) -> tuple[Markup, float]:
    """Requests that ended without an answer: a bar a bin, or a line that says there were none."""
    parts, top = _panel_heading("No answer", "requests", y + 16, layout)
    bottom = top + 34
    parts.append(svg.line(axis.start, bottom, axis.end, bottom, "base"))
    largest = max(series.failures, default=0)
    if not largest:
        words = "none: every request got an answer" if not series.empty else "no data: no requests"
        parts.append(svg.text(axis.start + 4, bottom - 8, words, "absent"))
        return svg.group(parts), bottom
    scale = Axis(0, largest, bottom, top + 2)
    parts.append(_value_tick(scale(largest), str(largest), axis, layout))
    for begin, end, count in zip(
        series.edges_s[:-1], series.edges_s[1:], series.failures, strict=True
    ):
        if count:
            tip = f"{count} without an answer, {seconds_text(round(begin, 1))}"
            width = max(axis(end) - axis(begin) - 1, 1.5)
            parts.append(
                svg.rect(axis(begin), scale(count), width, bottom - scale(count), "failed", tip)
            )
    return svg.group(parts), bottom


def _panel_heading(name: str, unit: str, y: float, layout: Layout) -> tuple[list[Markup], float]:
    """Name and unit, beside the chart or above it, and the y at which the chart begins."""
    if layout.names_above:
        beside = svg.element("tspan", unit, class_="tick", dx=8)
        title = svg.element("text", name, beside, x=layout.gutter, y=y + 8, class_="title")
        return [title], y + 18
    return [svg.text(0, y + 14, name, "title"), svg.text(0, y + 29, unit, "tick")], y


def _value_tick(y: float, words: str, axis: Axis, layout: Layout) -> Markup:
    """A value left of its grid line, or on it where there is no gutter."""
    if layout.names_above:
        return svg.text(axis.start + 2, y - 2, words, "tick halo")
    return svg.text(layout.gutter - 8, y + 3.5, words, "tick", "end")
