"""The page of a store's past runs: what each came to, and two ticked to be compared."""

from collections.abc import Sequence
from importlib import metadata
from urllib.parse import quote

from markupsafe import Markup

from tocsin.chaos.compare.render import verdict_tone
from tocsin.chaos.past_runs import REPORT, PastRun
from tocsin.chaos.report.environment import content_policy, page_environment, page_text
from tocsin.chaos.report.model import Tone
from tocsin.chaos.verdict import EXIT_ABORTED, EXIT_UNHEALED

_PACKAGE = "tocsin.chaos.compare"
ROWS_MOST = 500
_EXIT_WORDS = {EXIT_ABORTED: "aborted", EXIT_UNHEALED: "not healed"}


def render_index(
    runs: Sequence[PastRun], experiments: Sequence[str], chosen: str, store: str
) -> str:
    """The page.

    Args:
        runs: of the chosen experiment, newest first; the page shows the first `ROWS_MOST`.
        experiments: names of all in the store; chosen: the one shown, empty for all.
    """
    return _render(
        "runs.html.jinja",
        form=True,
        runs=runs[:ROWS_MOST],
        total=len(runs),
        experiments=experiments,
        chosen=chosen,
        store=store,
        words=_words,
        tone=_tone,
        link=lambda run: f"/runs/{quote(run.id)}/{REPORT}",
    )


def render_refusal(title: str, reason: str) -> str:
    """A page that says why there is nothing to show."""
    return _render("refusal.html.jinja", form=False, title=title, reason=reason)


def _render(template: str, *, form: bool, **values: object) -> str:
    css = page_text("report.css") + page_text("compare.css", _PACKAGE)
    return (
        page_environment()
        .from_string(page_text(template, _PACKAGE))
        .render(
            css=Markup(css),
            policy=content_policy(css, form=form),
            version=metadata.version("tocsin"),
            **values,
        )
    )


def _words(run: PastRun) -> str:
    """What the run came to; one without a verdict is running, or was killed."""
    return _EXIT_WORDS.get(run.exit_code or 0, run.verdict) or "no verdict"


def _tone(run: PastRun) -> Tone:
    if not run.verdict:
        return Tone.IDLE
    return Tone.BAD if run.exit_code in _EXIT_WORDS else verdict_tone(run.verdict)
