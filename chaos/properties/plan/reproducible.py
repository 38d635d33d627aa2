"""The same seed is the same experiment."""

from collections.abc import Mapping
from typing import Any

from tocsin.chaos.case import Case, PropertyVerdict, Violation, conclude
from tocsin.chaos.contract import prop
from tocsin.chaos.plan import Occurrence, redraw

SECOND = "second_run"
"""Fact that a run made twice keeps: `plan_digest`, `history_digest`, `outcomes` by occurrence, of
both: `{"first": …, "second": …}`."""


@prop(
    "plan.reproducible",
    sins=("other_draw", "other_history"),
    advice="look for chance or time that does not come from core/draw.py and core/clock.py",
    conditional=True,
)
def judge(case: Case) -> PropertyVerdict:
    """What was planned is what the seed draws; a second run has the same plan and outcomes.

    The recorded plan is drawn again from the recorded spec, in another process where properties
    have their own. A plan may have been cut down (`chaos shrink`), never changed. A simulation is
    run twice and keeps both digests: there the whole history must be the same.
    """
    drawn = {one.id: one for one in redraw(case.spec, case.plan.occurrences)}
    violations = [
        Violation(f"{one.id}: {reason}", occurrence=one.id)
        for one in case.plan.occurrences
        if (reason := _changed(one, drawn.get(one.id)))
    ]
    second = case.facts.get(SECOND)
    if isinstance(second, Mapping):
        violations += _differences(second)
    left_out = len(drawn) - len(case.plan.occurrences)
    return conclude(
        judge.id,
        len(case.plan.occurrences) + (second is not None),
        violations,
        nothing="nothing was planned",
        notes=(f"{left_out} drawn occurrences are not in the plan: it was cut down",)
        if left_out > 0
        else (),
    )


def _changed(planned: Occurrence, drawn: Occurrence | None) -> str:
    if drawn is None:
        return "the seed does not draw it"
    for name in ("kind", "clock", "at", "replica", "seed"):
        was, now = getattr(planned, name), getattr(drawn, name)
        if was != now:
            return f"its {name} is {was}, the seed draws {now}"
    return ""


def _differences(both: Mapping[str, Any]) -> list[Violation]:
    """What two runs of one seed differ in."""
    first, second = both.get("first") or {}, both.get("second") or {}
    found = [
        Violation(f"the second run has another {name.replace('_', ' ')}: {was} and {now}")
        for name in ("plan_digest", "history_digest")
        if (was := first.get(name)) != (now := second.get(name))
    ]
    outcomes = first.get("outcomes") or {}, second.get("outcomes") or {}
    for name in sorted({*outcomes[0], *outcomes[1]}):
        was, now = outcomes[0].get(name), outcomes[1].get(name)
        if was != now:
            text = f"{name}: ended {was} in the first run, {now} in the second"
            found.append(Violation(text, occurrence=name))
    return found
