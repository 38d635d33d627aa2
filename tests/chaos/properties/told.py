"""What a system may tell, for hand-made histories; and the short ways to a verdict."""

from dataclasses import replace
from typing import Any

from tests.chaos.histories import MS, clean_case
from tocsin.chaos.case import Case, PropertyVerdict
from tocsin.chaos.contract import properties
from tocsin.chaos.spec import CheckSpec
from tocsin.core.history import Event, EventKind

CLEAN = clean_case()
T0 = CLEAN.t_start_ns
FIRED = CLEAN.occurrences[0].fired_ns
SECOND = 1000 * MS


def judge(property_id: str, case: Case) -> PropertyVerdict:
    """The verdict."""
    return properties()[property_id].judge(case)


def conclusion(property_id: str, case: Case) -> str:
    """What it comes to, as text."""
    return str(judge(property_id, case).conclusion)


def first(property_id: str, case: Case) -> str:
    """The first violation."""
    return judge(property_id, case).violations[0].message


def with_events(*events: Event, observes: tuple[str, ...] = (), **changes: Any) -> Case:
    """The clean case with further events, of a system that tells so much."""
    facts = {**CLEAN.facts, "observes": list(observes)}
    return clean_case(events=(*CLEAN.events, *events), facts=facts, **changes)


def event(kind: EventKind, t_ns: int, by: str = "replica-0", /, **data: Any) -> Event:
    """Something that the system tells."""
    return Event(kind, t_ns, by, data=data)


def with_params(case: Case, property_id: str, **params: float) -> Case:
    """The case with limits of one property."""
    check = CheckSpec(id=property_id, params=params)
    return replace(case, spec=case.spec.model_copy(update={"checks": (check,)}))
