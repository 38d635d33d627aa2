"""One page on a soak: its verdict, its windows and what processes held, with no network."""

from collections.abc import Sequence

from markupsafe import Markup

from tocsin.chaos.report import svg
from tocsin.chaos.soak.document import Soak, Window

_WIDTH, _HEIGHT = 860.0, 150.0
_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; color: #1c2430 }
table { border-collapse: collapse; width: 100% } td, th { padding: .2rem .5rem; text-align: left }
tr { border-top: 1px solid #ddd } svg { width: 100%; height: auto }
.bad { color: #b3261e; font-weight: 600 } .good { color: #1b6e3c; font-weight: 600 }
.line { fill: none; stroke: #2d5bd0; stroke-width: 1.5 }
.name { font-size: 12px; fill: #667 } .axis { stroke: #ccc; stroke-width: 1 }
@media (prefers-color-scheme: dark) {
body { background: #14181f; color: #dde3ec } tr { border-color: #333 }
.bad { color: #ff8a80 } .good { color: #7fd6a0 } .line { stroke: #8ab4ff } }
"""


def soak_page(soak: Soak) -> str:
    """The page as HTML."""
    tone = "good" if soak.exit_code == 0 else "bad"
    body = [
        svg.element("h1", f"Soak, {'without faults, ' if soak.faultless else ''}{soak.where}"),
        svg.element("p", f"{soak.verdict}: {soak.sentence}", class_=tone),
        svg.element(
            "p",
            f"model {soak.model}, seed {soak.seed}; {soak.requests:,} requests in "
            f"{len(soak.windows)} windows, {soak.wall_s / 60:.1f} minutes",
        ),
        svg.element("h2", "What processes held"),
        *_held(soak),
        svg.element("h2", "Windows"),
        _windows(soak.windows),
    ]
    head = svg.element(
        "head",
        svg.element("meta", charset="utf-8"),
        svg.element("title", f"Soak {soak.seed}: {soak.verdict}"),
        svg.element("style", Markup(_STYLE)),
    )
    page = svg.element("html", head, svg.element("body", *body), lang="en")
    return f"<!doctype html>\n{page}\n"


def _held(soak: Soak) -> list[Markup]:
    rows = [_row(("process", "reading", "first", "last", "per 1,000 requests", "verdict"), "th")]
    for one in soak.trends:
        words = f"{one.verdict}: {one.why}" if one.why else one.verdict
        amounts = [_amount(one.reading, v) for v in (one.first, one.last, one.per_1000)]
        cells = [one.process, one.reading, *amounts, words]
        rows.append(_row(cells, "td", bad=one.verdict == "leak"))
    charts = [
        _chart(soak.windows, process)
        for process in dict.fromkeys(one.process for one in soak.trends)
    ]
    return [svg.element("table", *rows), *charts]


def _chart(windows: Sequence[Window], process: str) -> Markup:
    """Resident memory of one process by window."""
    held = [window.processes.get(process, {}).get("rss_bytes") for window in windows]
    known = [value for value in held if value is not None]
    low, high = min(known, default=0.0), max(known, default=1.0)
    span = max(high - low, 1.0)
    step = (_WIDTH - 120) / max(1, len(held) - 1)
    points = [
        (10 + k * step, None if v is None else 20 + (_HEIGHT - 40) * (high - v) / span)
        for k, v in enumerate(held)
    ]
    title = f"{process}: resident memory, {_amount('rss_bytes', low)} to " + _amount(
        "rss_bytes", high
    )
    return svg.element(
        "svg",
        svg.text(10, 12, title, "name"),
        svg.line(10, _HEIGHT - 18, _WIDTH - 110, _HEIGHT - 18, "axis"),
        svg.curve(points, "line"),
        viewBox=f"0 0 {_WIDTH:.0f} {_HEIGHT:.0f}",
        role="img",
    )


def _windows(windows: Sequence[Window]) -> Markup:
    names = ("#", "verdict", "faults", "fired", "seen", "requests", "what happened")
    rows = [_row(names, "th")]
    for one in windows:
        cells = [str(one.index), one.verdict, " ".join(one.kinds), f"{one.fired}/{one.planned}"]
        cells += [str(one.detected), str(one.requests), f"{one.sentence} {one.kept}"]
        rows.append(_row(cells, "td", bad=one.exit_code not in (0, 2)))
    return svg.element("table", *rows)


def _row(cells: Sequence[str], name: str, *, bad: bool = False) -> Markup:
    made = [svg.element(name, text) for text in cells]
    return svg.element("tr", *made, class_="bad" if bad else None)


def _amount(reading: str, value: float) -> str:
    return f"{value / 2**20:.1f} MiB" if reading.endswith("_bytes") else f"{value:.2f}"
