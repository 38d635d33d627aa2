"""A comparison as one HTML page in the style of the report; it needs no network and no script."""

import math
from importlib import metadata
from urllib.parse import quote

from markupsafe import Markup

from tocsin.chaos.compare.meaning import MEANING
from tocsin.chaos.compare.model import Change, Comparison, PairedRatio, Side
from tocsin.chaos.report.environment import content_policy, page_environment, page_text
from tocsin.chaos.report.model import Tone
from tocsin.chaos.report.svg import element, line, rect

_PACKAGE = "tocsin.chaos.compare"
TONES = {
    Change.SAME: Tone.IDLE,
    Change.BETTER: Tone.GOOD,
    Change.WORSE: Tone.BAD,
    Change.ADDED: Tone.DOUBT,
    Change.REMOVED: Tone.DOUBT,
}
VERDICT_TONES = {"pass": Tone.GOOD, "vacuous": Tone.DOUBT, "unknown": Tone.DOUBT}
_WIDTH, _HEIGHT, _SPAN = 180.0, 18.0, math.log(4.0)
"""An interval is drawn on a logarithmic axis from a quarter to four times."""


def render_comparison(found: Comparison, links: bool = False) -> str:
    """The whole page.

    Args:
        links: the page is served by `tocsin chaos serve`, so both reports can be reached.
    """
    css = page_text("report.css") + page_text("compare.css", _PACKAGE)
    template = page_environment().from_string(page_text("compare.html.jinja", _PACKAGE))
    same = [one for one in found.properties if one.change is Change.SAME]
    return template.render(
        found=found,
        tone=Tone.BAD if found.worse else Tone.GOOD,
        meaning=MEANING,
        tones=TONES,
        verdict_tone=verdict_tone,
        changed=[one for one in found.properties if one.change is not Change.SAME],
        same=same,
        ratios=[(one, interval(one)) for one in found.paired],
        report=report_link if links else None,
        css=Markup(css),
        policy=content_policy(css),
        version=metadata.version("tocsin"),
    )


def verdict_tone(verdict: str) -> Tone:
    """The colour of a verdict; a missing one is no colour."""
    return VERDICT_TONES.get(verdict, Tone.BAD) if verdict else Tone.IDLE


def report_link(side: Side) -> str:
    """Where the server has the report of a run."""
    return f"/runs/{quote(side.run)}/report.html"


def interval(one: PairedRatio) -> Markup:
    """The ratio and its interval around 1 as a small drawing; empty without an interval."""
    if one.ratio is None or one.low is None or one.high is None:
        return Markup("")
    low, middle, high = (_x(value) for value in (one.low, one.ratio, one.high))
    return element(
        "svg",
        line(_WIDTH / 2, 1.0, _WIDTH / 2, _HEIGHT - 1.0, "even"),
        line(low, _HEIGHT / 2, max(high, low + 1.0), _HEIGHT / 2, "range"),
        rect(middle - 2.5, _HEIGHT / 2 - 5.0, 5.0, 10.0, "point"),
        class_="interval",
        viewBox=f"0 0 {_WIDTH:g} {_HEIGHT:g}",
        aria_hidden="true",
    )


def _x(ratio: float) -> float:
    """Where a ratio stands on the axis; what is beyond it stands at its end."""
    share = math.log(ratio) / _SPAN if ratio > 0 else -1.0
    return _WIDTH / 2 * (1.0 + min(0.97, max(-0.97, share)))
