"""From the report's data to one HTML file that needs nothing else."""

import base64
import hashlib
from dataclasses import asdict
from importlib import metadata
from importlib.resources import files

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from tocsin.chaos.report.lanes import NARROW, WIDE
from tocsin.chaos.report.matrix import matrix_svg
from tocsin.chaos.report.model import GLYPHS, Timeline, View
from tocsin.chaos.report.timeline import timeline_svg
from tocsin.chaos.report.wording import legible, milliseconds, rate, share


def render(view: View) -> str:
    """The whole page; every text in it is escaped by the template engine.

    The page's own content security policy admits only the script and the style that are in it,
    by their hashes: text that slipped through could still not run or load anything.
    """
    page = files("tocsin.chaos.report") / "page"
    css = (page / "report.css").read_text(encoding="utf-8")
    js = (page / "report.js").read_text(encoding="utf-8")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, finalize=_finished
    )
    environment.filters.update(
        ms=milliseconds, rate=rate, share=share, coded=_coded, dotted=_dotted
    )
    template = environment.from_string((page / "report.html.jinja").read_text(encoding="utf-8"))
    return template.render(
        view=view,
        glyphs=GLYPHS,
        charts={
            "wide": timeline_svg(view.timeline, WIDE),
            "narrow": timeline_svg(view.timeline, NARROW),
            "matrix": matrix_svg(view.faults),
        },
        series=_hover_data(view.timeline),
        css=Markup(css),
        js=Markup(js),
        policy=_policy(css, js),
        no_diffs=_no_diffs(view),
        version=metadata.version("tocsin"),
    )


def _finished(value: object) -> object:
    """What every expression of the template goes through before it is escaped."""
    return legible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _coded(text: str) -> Markup:
    """Escaped text in which what stood between backticks is code."""
    pieces = [
        Markup("<code>%s</code>") % piece if k % 2 else escape(piece)
        for k, piece in enumerate(legible(text).split("`"))
    ]
    return Markup("").join(pieces)


def _dotted(name: str) -> Markup:
    """An escaped dotted name that may be broken at its dots and low lines."""
    broken = str(escape(legible(name)))
    for mark in "._":
        broken = broken.replace(mark, f"{mark}<wbr>")
    return Markup(broken)


def _no_diffs(view: View) -> str:
    """Why there is nothing to compare: all equal, or nothing to compare it with."""
    if not any(view.timeline.series.tokens_per_s):
        return "No token arrived, so nothing could be compared: this is not a pass."
    incomplete = any(caveat.topic == "golden answers" for caveat in view.caveats)
    rest = " Prompts without a golden answer could not be compared." if incomplete else ""
    return f"Every answer that could be compared is the golden one, token for token.{rest}"


def _policy(css: str, js: str) -> str:
    """Nothing may be loaded; only this style and this script may be used."""
    return (
        f"default-src 'none'; img-src data:; style-src '{_digest(css)}'; "
        f"script-src '{_digest(js)}'; base-uri 'none'; form-action 'none'"
    )


def _digest(source: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()


def _hover_data(timeline: Timeline) -> dict[str, object]:
    """What the script needs to explain a point of the curves."""
    windows = [(span.start_s, span.end_s, span.label) for span in timeline.windows]
    return {**asdict(timeline.series), "windows": windows}
