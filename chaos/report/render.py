"""From the report's data to one HTML file that needs nothing else."""

from dataclasses import asdict
from importlib import metadata

from markupsafe import Markup

from tocsin.chaos.report.environment import content_policy, page_environment, page_text
from tocsin.chaos.report.lanes import NARROW, WIDE
from tocsin.chaos.report.matrix import matrix_svg
from tocsin.chaos.report.model import Timeline, View
from tocsin.chaos.report.timeline import timeline_svg


def render(view: View) -> str:
    """The whole page; every text in it is escaped by the template engine.

    The page's own content security policy admits only the script and the style that are in it,
    by their hashes: text that slipped through could still not run or load anything.
    """
    css, js = page_text("report.css"), page_text("report.js")
    template = page_environment().from_string(page_text("report.html.jinja"))
    return template.render(
        view=view,
        charts={
            "wide": timeline_svg(view.timeline, WIDE),
            "narrow": timeline_svg(view.timeline, NARROW),
            "matrix": matrix_svg(view.faults),
        },
        series=_hover_data(view.timeline),
        css=Markup(css),
        js=Markup(js),
        policy=content_policy(css, js),
        no_diffs=_no_diffs(view),
        version=metadata.version("tocsin"),
    )


def _no_diffs(view: View) -> str:
    """Why there is nothing to compare: all equal, or nothing to compare it with."""
    if not any(view.timeline.series.tokens_per_s):
        return "No token arrived, so nothing could be compared: this is not a pass."
    incomplete = any(caveat.topic == "golden answers" for caveat in view.caveats)
    rest = " Prompts without a golden answer could not be compared." if incomplete else ""
    return f"Every answer that could be compared is the golden one, token for token.{rest}"


def _hover_data(timeline: Timeline) -> dict[str, object]:
    """What the script needs to explain a point of the curves."""
    windows = [(span.start_s, span.end_s, span.label) for span in timeline.windows]
    return {**asdict(timeline.series), "windows": windows}
