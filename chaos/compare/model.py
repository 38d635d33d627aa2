"""A comparison as plain data: computed once, then printed, written as JSON or drawn as a page.

A is the run that is compared with, B the one that is asked about. What is not known is None.
"""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Change(StrEnum):
    """What became of one thing between A and B."""

    SAME = "same"
    BETTER = "better"
    WORSE = "worse"
    ADDED = "only in B"
    REMOVED = "only in A"


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two runs.

    Attributes:
        run: `<experiment>/<name of its folder>`.
        verdict: its conclusion; exit_code: what the run ended with.
        availability: answered honest requests / ended ones; None: none ended.
    """

    run: str
    run_dir: str
    experiment: str
    verdict: str
    exit_code: int
    sentence: str
    seed: int
    plan_digest: str
    engine: str
    model: str
    profile: str
    length_s: float
    requests: int
    tokens: int
    silent_corruptions: int
    lost: int
    duplicated: int
    false_alarms: int
    availability: float | None


@dataclass(frozen=True, slots=True)
class PropertyChange:
    """One property in both runs; a verdict is empty where it was not judged."""

    id: str
    a: str
    b: str
    violations_a: int
    violations_b: int
    first: str
    change: Change


@dataclass(frozen=True, slots=True)
class FaultReading:
    """What became of one fault in one run; times in milliseconds, None: no data."""

    planned: int
    fired: int
    detected: int
    healed: int
    mttd_ms_p50: float | None
    mttd_ms_p99: float | None
    recover_ms_max: float | None


@dataclass(frozen=True, slots=True)
class FaultChange:
    """One fault in both runs; None where the run has no such fault."""

    id: str
    kind: str
    a: FaultReading | None
    b: FaultReading | None
    change: Change
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PhaseReading:
    """What clients saw in one phase; shares of the requests sent in it."""

    requests: int
    failed_share: float | None
    degraded_share: float | None
    ttft_ms_p50: float | None
    ttft_ms_p99: float | None
    gap_ms_p50: float | None
    gap_ms_p99: float | None
    tokens_per_s: float | None


@dataclass(frozen=True, slots=True)
class PhaseChange:
    """One phase in both runs: before the first fault, until the last heal, after it."""

    name: str
    a: PhaseReading | None
    b: PhaseReading | None


@dataclass(frozen=True, slots=True)
class PairedRatio:
    """How a time of the same request differs: geometric mean of B / A, with its 95 % interval.

    Attributes:
        measure: `first token`, `between tokens` or `whole answer`.
        phase: of A in which the request was sent; `whole run`: all of them.
        pairs: requests that both runs answered.
        ratio, low, high: None with too few pairs for an interval.
    """

    measure: str
    phase: str
    pairs: int
    ratio: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything that two runs differ in.

    Attributes:
        same_plan: the same seed, workload and occurrences: only then do requests pair up.
        differences: settings in which the experiments differ, as (name, A, B).
        worse: each way in which B is worse, one sentence each; none: it is no worse.
        tolerance: share by which a time may grow unremarked.
    """

    a: Side
    b: Side
    same_plan: bool
    differences: tuple[tuple[str, str, str], ...]
    properties: tuple[PropertyChange, ...]
    faults: tuple[FaultChange, ...]
    phases: tuple[PhaseChange, ...]
    paired: tuple[PairedRatio, ...]
    worse: tuple[str, ...]
    tolerance: float

    def to_json(self) -> dict[str, Any]:
        """JSON-safe."""
        return asdict(self)
