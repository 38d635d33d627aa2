"""The verdict of a run: what it comes to, what it rests on, and `verdict.json`."""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tocsin.chaos.attribution import Detection
from tocsin.chaos.case import Conclusion, PropertyVerdict
from tocsin.chaos.triage import DIVERGENCES

EXIT_PASS, EXIT_FAIL, EXIT_UNKNOWN, EXIT_INVALID, EXIT_ABORTED, EXIT_UNHEALED = range(6)
EXIT_SPEC = 64

_EXIT = {
    Conclusion.PASS: EXIT_PASS,
    Conclusion.FAIL: EXIT_FAIL,
    Conclusion.UNKNOWN: EXIT_UNKNOWN,
    Conclusion.VACUOUS: EXIT_UNKNOWN,
    Conclusion.INVALID: EXIT_INVALID,
    Conclusion.ABORTED: EXIT_ABORTED,
    Conclusion.UNHEALED: EXIT_UNHEALED,
}
_WORST_FIRST = (
    Conclusion.FAIL,
    Conclusion.INVALID,
    Conclusion.UNKNOWN,
    Conclusion.VACUOUS,
    Conclusion.PASS,
)


def worst(conclusions: Iterable[Conclusion]) -> Conclusion:
    """fail > invalid > unknown > vacuous > pass; of nothing at all: vacuous."""
    return min(conclusions, key=_WORST_FIRST.index, default=Conclusion.VACUOUS)


def exit_code_of(conclusion: Conclusion, *, aborted: bool, unhealed: bool) -> int:
    """The exit code of a run: what may still be broken comes first, then why it stopped early."""
    if unhealed:
        return EXIT_UNHEALED
    return EXIT_ABORTED if aborted else _EXIT[conclusion]


@dataclass(frozen=True, slots=True)
class SinResult:
    """One known-bad history, and whether the properties objected to it.

    Attributes:
        caught: every expected property flagged it and no other one did.
    """

    sin: str
    caught: bool
    meaning: str
    expected: tuple[str, ...]
    flagged: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FaultSummary:
    """One fault of the spec, its occurrences counted.

    Attributes:
        detected: fired occurrences that a meant detector saw in time.
        detectors: every detector that alarmed for it, meant or not, and how often.
        mttd_ms_p50, mttd_ms_p99: from injection to alarm; None: no data.
        touched: requests that its evidence or its alarms name; silent: silently wrong ones.
        recover_ms_max: from heal to steady state; None: no data.
    """

    id: str
    kind: str
    planned: int
    fired: int
    verified: int
    detected: int
    healed: int
    required: bool
    detectors: Mapping[str, int]
    mttd_ms_p50: float | None
    mttd_ms_p99: float | None
    touched: int
    silent: int
    recover_ms_max: float | None


@dataclass(frozen=True, slots=True)
class RunVerdict:
    """What a run comes to.

    Attributes:
        sentence: what broke first, or that nothing did.
        reasons: why the run is invalid, aborted, unknown or unhealed.
        availability: answered honest requests / ended ones; None: none ended.
    """

    conclusion: Conclusion
    exit_code: int
    sentence: str
    reasons: tuple[str, ...]
    seed: int
    plan_digest: str
    engine: str
    model: str
    profile: str
    requests: int
    tokens: int
    silent_corruptions: int
    lost: int
    duplicated: int
    availability: float | None
    false_alarms: int
    properties: tuple[PropertyVerdict, ...]
    faults: tuple[FaultSummary, ...]
    self_test: tuple[SinResult, ...]
    detections: tuple[Detection, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The content of `verdict.json`."""
        golden = next((one for one in self.properties if one.id == "golden.tokens"), None)
        classes: Mapping[str, int] = golden.classes if golden is not None else {}
        return {
            "verdict": str(self.conclusion),
            "exit_code": self.exit_code,
            "sentence": self.sentence,
            "reasons": list(self.reasons),
            "seed": self.seed,
            "plan_digest": self.plan_digest,
            "engine": self.engine,
            "model": self.model,
            "profile": self.profile,
            "requests": self.requests,
            "tokens": self.tokens,
            "silent_corruptions": self.silent_corruptions,
            "lost": self.lost,
            "duplicated": self.duplicated,
            "availability": self.availability,
            "false_alarms": self.false_alarms,
            "divergences": {str(one): classes.get(str(one), 0) for one in DIVERGENCES},
            "properties": [_property(one) for one in self.properties],
            "faults": [_fault(one) for one in self.faults],
            "oracle_self_test": [dataclasses.asdict(one) for one in self.self_test],
        }


def _property(one: PropertyVerdict) -> dict[str, Any]:
    return {
        "id": one.id,
        "verdict": str(one.conclusion),
        "checked": one.checked,
        "violations": len(one.violations),
        "first": one.violations[0].message if one.violations else "",
        "reason": one.reason,
        "notes": list(one.notes),
    }


def _fault(one: FaultSummary) -> dict[str, Any]:
    document = dataclasses.asdict(one)
    document["detectors"] = sorted(one.detectors)
    document["detector_counts"] = dict(sorted(one.detectors.items()))
    return document
