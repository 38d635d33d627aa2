"""Enough requests are answered."""

from tocsin.chaos.case import Case, PropertyVerdict, Violation, conclude
from tocsin.chaos.contract import prop
from tocsin.chaos.steady import availability
from tocsin.core.history import Outcome


@prop(
    "service.availability",
    sins=("refuse_all",),
    advice="see which faults the refused requests name, and whether recovery could serve them",
)
def judge(case: Case) -> PropertyVerdict:
    """The share of honest, uncancelled requests that were answered keeps to the budget."""
    kept = [record for record in case.honest if not case.cut_off(record)]
    ended = [record for record in kept if record.outcome is not Outcome.CANCELLED]
    share = availability(kept)
    violations = []
    if share is not None and share < case.spec.budget.availability:
        refused = [record for record in ended if record.outcome is not Outcome.OK]
        violations.append(
            Violation(
                f"{share:.2%} of {len(ended)} requests were answered, "
                f"the budget wants {case.spec.budget.availability:.2%}",
                request_id=refused[0].request_id,
                evidence={"first_error": refused[0].error},
            )
        )
    return conclude(judge.id, len(ended), violations, nothing="no honest request ended")
