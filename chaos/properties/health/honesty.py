"""The health pages say ok only while the service can answer."""

import numpy as np

from tocsin.chaos.case import Case, PropertyVerdict, Violation, conclude
from tocsin.chaos.contract import prop
from tocsin.chaos.steady import Timeline
from tocsin.core.history import Event, EventKind

SLACK_S = 10.0
"""How old the proof may be: /health takes a token of the last ten seconds for one."""
_PAGES = {"health_ok": "/health", "checker_ok": "/health/checker_status"}


@prop(
    "health.honesty",
    sins=("healthy_while_down",),
    advice="a health page must rest on a generation that succeeded lately, not on a process "
    "that is there",
    conditional=True,
)
def judge(case: Case) -> PropertyVerdict:
    """No page says ok while requests wait and no token has reached anybody for a while.

    Pages that answered 200 while generation was wedged: dynamo#12389, TensorRT-LLM#12718. The load
    itself is the probe: a reading counts where some request was open around it, and is true if a
    token arrived within `slack_s` (10) before or after. A page that gives no answer says nothing
    wrong, and is noted.
    """
    readings = [event for event in case.events if event.kind is EventKind.HEALTH]
    slack_ns = int(case.spec.check_params(judge.id).get("slack_s", SLACK_S) * 1e9)
    timeline = Timeline.of(case.records)
    checked = silent = 0
    violations: list[Violation] = []
    for event in readings:
        answers = {page: event.data.get(key) for key, page in _PAGES.items()}
        silent += answers["/health"] is None
        said_ok = [page for page, answer in answers.items() if answer is True]
        served = _served(timeline, event.t_ns - slack_ns, event.t_ns + slack_ns)
        if served is None or all(answer is None for answer in answers.values()):
            continue
        checked += 1
        if said_ok and not served:
            violations.append(_lie(case, event, said_ok, slack_ns))
    offered = "health" in case.facts.get("observes", ())
    return conclude(
        judge.id,
        checked,
        violations,
        unknown="no reading of the health pages was recorded" if offered and not readings else "",
        nothing="no health page gave an answer while somebody wanted one"
        if offered
        else "the system has no health page",
        notes=(f"{silent} of {len(readings)} readings had no answer",) if silent else (),
    )


def _served(timeline: Timeline, start_ns: int, end_ns: int) -> bool | None:
    """Whether a token arrived in [start, end); None when nobody wanted one all that time."""
    first, last = np.searchsorted(timeline.tokens, [start_ns, end_ns])
    if last > first:
        return True
    begun = int(np.searchsorted(timeline.begins, start_ns))
    ended = int(np.searchsorted(timeline.ends, end_ns))
    return False if begun > ended else None


def _lie(case: Case, event: Event, pages: list[str], slack_ns: int) -> Violation:
    at_s = (event.t_ns - case.t_start_ns) / 1e9
    return Violation(
        f"{' and '.join(pages)} said ok at {at_s:.1f} s, no token arrived within "
        f"{slack_ns / 1e9:g} s of it",
        evidence={"status": event.data.get("status"), "at_s": round(at_s, 3)},
    )
