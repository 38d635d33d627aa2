"""A recorded run, all of it: what was planned, done, seen by clients and seen by the servers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tocsin.chaos.plan import Occurrence, Plan
from tocsin.chaos.spec import Experiment
from tocsin.core.faulting import Evidence
from tocsin.core.history import Event, Outcome, RequestRecord
from tocsin.core.system import GoldenAnswer, LoadRequest


class Conclusion(StrEnum):
    """What a property, or a whole run, comes to; a run takes the worst of its properties."""

    PASS = "pass"
    FAIL = "fail"
    UNKNOWN = "unknown"
    VACUOUS = "vacuous"
    INVALID = "invalid"
    ABORTED = "aborted"
    UNHEALED = "unhealed"


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt of a prompt set; `canary` is a word that occurs in no other prompt."""

    id: str
    text: str
    canary: str


@dataclass(slots=True)
class OccurrenceRecord:
    """What became of one planned occurrence.

    Attributes:
        replica: id of the replica that was hit, "client" for the load; empty: never ordered.
        state: `planned`, or the state of its order (`core.faulting.OrderStatus`).
        ordered_ns, fired_ns, healed_ns: when, 0 while it has not happened.
        retargeted_from: id of the replica that died before the fault could fire in it.
        orders: how often it was ordered.
        seen_ns: when a client saw the service's answer to a fault of the clients, 0: none did.
    """

    planned: Occurrence
    replica: str = ""
    state: str = "planned"
    ordered_ns: int = 0
    fired_ns: int = 0
    fired_step: int = -1
    healed_ns: int = 0
    evidence: Evidence | None = None
    error: str = ""
    retargeted_from: str = ""
    orders: int = 0
    seen_ns: int = 0

    @property
    def fired(self) -> bool:
        """Its target says that it was injected."""
        return self.fired_ns > 0

    @property
    def verified(self) -> bool:
        """There is proof: the place was read before and after, and reads differently."""
        return self.fired and self.evidence is not None and self.evidence.fired

    @property
    def healed(self) -> bool:
        """The place was shown to read as it should again."""
        return self.state == "healed"

    @property
    def settled(self) -> bool:
        """Nothing more will happen to it."""
        return self.state in ("healed", "unhealed", "disarmed", "expired")


@dataclass(frozen=True, slots=True)
class Case:
    """All that a verdict is made of; properties are pure functions of it.

    Attributes:
        facts: what the system said of itself: engine, model, profile, versions.
        warmup: records of the requests sent before the load.
        t_faults_ns: the first order; 0: there was none. t_healed_ns: the last heal.
        aborted: why the run was stopped early; empty: it was not. t_aborted_ns: when.
    """

    spec: Experiment
    plan: Plan
    facts: Mapping[str, Any]
    records: tuple[RequestRecord, ...]
    requests: Mapping[str, LoadRequest]
    events: tuple[Event, ...]
    golden: Mapping[str, GoldenAnswer]
    certificate: Mapping[str, Any]
    occurrences: tuple[OccurrenceRecord, ...]
    prompts: Mapping[str, Prompt]
    warmup: tuple[RequestRecord, ...] = ()
    t_start_ns: int = 0
    t_faults_ns: int = 0
    t_healed_ns: int = 0
    t_end_ns: int = 0
    aborted: str = ""
    t_aborted_ns: int = 0
    notes: tuple[str, ...] = ()

    @property
    def honest(self) -> tuple[RequestRecord, ...]:
        """Records of the requests that an honest client would send."""
        return tuple(record for record in self.records if not record.malformed)

    def cut_off(self, record: RequestRecord) -> bool:
        """Whether a request has no answer because the run itself was stopped under it."""
        if not self.aborted or record.outcome not in (Outcome.OPEN, Outcome.INFO):
            return False
        return not record.t_end_ns or record.t_end_ns >= self.t_aborted_ns


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing that a property forbids and the history holds."""

    message: str
    request_id: str = ""
    occurrence: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    advice: str = ""


@dataclass(frozen=True, slots=True)
class PropertyVerdict:
    """What one property comes to.

    Attributes:
        checked: number of cases looked at; with none the conclusion is vacuous, never pass.
        reason: why it is unknown or vacuous.
        notes: what a reader should know besides, e.g. near ties that were let pass.
        classes: cases by class, those that were let pass too, e.g. of divergence (`triage`).
    """

    id: str
    conclusion: Conclusion
    checked: int
    violations: tuple[Violation, ...] = ()
    reason: str = ""
    notes: tuple[str, ...] = ()
    classes: Mapping[str, int] = field(default_factory=dict)


def conclude(
    property_id: str,
    checked: int,
    violations: list[Violation],
    *,
    unknown: str = "",
    nothing: str = "there was nothing to check",
    notes: tuple[str, ...] = (),
) -> PropertyVerdict:
    """The verdict of a property: fail > unknown > vacuous > pass.

    Args:
        unknown: why the data does not suffice; empty: it does.
        nothing: why there may have been nothing to check.
    """
    if violations:
        return PropertyVerdict(
            property_id, Conclusion.FAIL, checked, tuple(violations), notes=notes
        )
    if unknown:
        return PropertyVerdict(
            property_id, Conclusion.UNKNOWN, checked, reason=unknown, notes=notes
        )
    if checked == 0:
        return PropertyVerdict(property_id, Conclusion.VACUOUS, 0, reason=nothing, notes=notes)
    return PropertyVerdict(property_id, Conclusion.PASS, checked, notes=notes)
