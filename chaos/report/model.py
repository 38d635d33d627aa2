"""The report as plain data: what each section says, computed once, drawn by the template.

Times are seconds since the run began. A figure that is not known is None, never zero: the
template prints it as "no data".
"""

from dataclasses import dataclass, field
from enum import StrEnum


class Tone(StrEnum):
    """How a statement is coloured; the words and the glyph beside it say the same."""

    GOOD = "good"
    BAD = "bad"
    DOUBT = "doubt"
    IDLE = "idle"


GLYPHS = {Tone.GOOD: "✓", Tone.BAD: "✕", Tone.DOUBT: "?", Tone.IDLE: "–"}


@dataclass(frozen=True, slots=True)
class Fact:
    """A name and its value."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Banner:
    """The verdict, what it rests on in one sentence, and how to see the run again."""

    verdict: str
    exit_code: int
    tone: Tone
    sentence: str
    reasons: tuple[str, ...]
    commands: tuple[Fact, ...]
    facts: tuple[Fact, ...]


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of the strip below the banner."""

    name: str
    value: str
    note: str = ""
    tone: Tone = Tone.IDLE


@dataclass(frozen=True, slots=True)
class PropertyRow:
    """One property and its verdict.

    Attributes:
        reason: why it is unknown or vacuous; empty otherwise.
        first: the first violation in words; `first_anchor` leads to its token diff, if any.
        self_test: `(sin, caught)` of the known-bad histories that it must flag.
    """

    id: str
    summary: str
    verdict: str
    tone: Tone
    checked: int
    violations: int
    reason: str
    first: str
    first_anchor: str
    advice: str
    self_test: tuple[tuple[str, bool], ...]

    @property
    def remarked(self) -> bool:
        """There is something to read about it besides its verdict."""
        return bool(self.first or self.reason)


class MarkKind(StrEnum):
    """What a mark of a fault lane stands for."""

    PLANNED = "planned"
    FIRED = "fired"
    DETECTED = "detected"
    HEALED = "healed"
    MISSED = "missed"  # fired and seen by nobody, or planned and never fired, or not healed


@dataclass(frozen=True, slots=True)
class Mark:
    """One point of a lane; `count` > 1 when several fell on one place of the axis."""

    t_s: float
    kind: MarkKind
    label: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time in which something held: a fault, or a replica's state."""

    start_s: float
    end_s: float
    state: str
    label: str


@dataclass(frozen=True, slots=True)
class Lane:
    """A row of the timeline: a fault kind or a replica."""

    name: str
    marks: tuple[Mark, ...] = ()
    spans: tuple[Span, ...] = ()


@dataclass(frozen=True, slots=True)
class Series:
    """Binned curves on the common time axis; a bin without samples holds None.

    Attributes:
        edges_s: bin edges, one more than there are bins.
        failures: requests that ended without an answer, a bin.
    """

    edges_s: tuple[float, ...]
    ttft_p50_ms: tuple[float | None, ...]
    ttft_p99_ms: tuple[float | None, ...]
    gap_p50_ms: tuple[float | None, ...]
    gap_p99_ms: tuple[float | None, ...]
    tokens_per_s: tuple[float | None, ...]
    failures: tuple[int, ...]

    @property
    def empty(self) -> bool:
        """No token arrived and nothing failed: there is nothing to draw."""
        return not any(self.tokens_per_s) and not any(self.failures)


@dataclass(frozen=True, slots=True)
class Timeline:
    """All lanes and curves on one axis from 0 to `end_s`."""

    end_s: float
    faults: tuple[Lane, ...]
    replicas: tuple[Lane, ...]
    windows: tuple[Span, ...]
    series: Series

    @property
    def empty(self) -> bool:
        """Nothing happened that could be drawn."""
        return self.series.empty and not self.faults and not self.replicas


@dataclass(frozen=True, slots=True)
class FalseAlarm:
    """An alarm while no fault was active that it could be of."""

    t_s: float
    detector: str
    replica: str
    failure_id: str


@dataclass(frozen=True, slots=True)
class DetectorCount:
    """How often one detector saw one kind of fault, and whether it was meant to."""

    detector: str
    count: int
    expected: bool


@dataclass(frozen=True, slots=True)
class FaultRow:
    """One kind of fault across its occurrences."""

    kind: str
    summary: str
    planned: int
    fired: int
    verified: int
    healed: int
    detected: int
    required: bool
    detectors: tuple[DetectorCount, ...]
    expected: tuple[str, ...]
    detect_ms_p50: float | None
    detect_ms_p99: float | None
    reactions: tuple[str, ...]
    evidence: str

    @property
    def undetected(self) -> int:
        """Fired occurrences that no expected detector saw in time."""
        return max(0, self.fired - self.detected)

    @property
    def missing(self) -> str:
        """What the detectors owe, in words; empty when nothing."""
        if not self.fired:
            return "never fired"
        if not self.undetected or not self.required:
            return ""
        words = "not seen in time by an expected one" if self.detectors else "not detected"
        return words if not self.detected else f"{self.undetected} {words}"


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """What clients saw before, during and after the faults."""

    name: str
    start_s: float
    end_s: float
    requests: int
    ok: int
    failed: int
    degraded: int
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    gap_p50_ms: float | None
    gap_p99_ms: float | None
    tokens_per_s: float | None


@dataclass(frozen=True, slots=True)
class TokenCell:
    """One index of a diff: the golden token and the received one, None past an end."""

    index: int
    golden: int | None
    received: int | None

    @property
    def differs(self) -> bool:
        """The two are not the same token."""
        return self.golden != self.received


@dataclass(frozen=True, slots=True)
class TokenDiff:
    """One answer beside the right one, around the first place where they part."""

    anchor: str
    request_id: str
    prompt_id: str
    prompt_text: str
    category: str
    meaning: str
    first_index: int
    margin: float | None
    labels: tuple[str, ...]
    attempts: tuple[str, ...]
    cells: tuple[TokenCell, ...]
    golden_text: str
    received_text: str


@dataclass(frozen=True, slots=True)
class DegradedAnswer:
    """An answer that says of itself that it was served in a degraded way."""

    request_id: str
    labels: tuple[str, ...]
    header: str
    tokens: int
    attempts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SinRow:
    """One known-bad history and whether the oracle objected to it."""

    sin: str
    meaning: str
    properties: tuple[str, ...]
    flagged: tuple[str, ...]
    caught: bool


@dataclass(frozen=True, slots=True)
class Caveat:
    """Something that this run did not show; `incomplete` when data is missing."""

    topic: str
    text: str
    incomplete: bool = False


@dataclass(frozen=True, slots=True)
class NextStep:
    """What to do about one violated property."""

    property_id: str
    advice: str
    violations: tuple[str, ...]
    more: int


@dataclass(frozen=True, slots=True)
class ReproductionRow:
    """A failure as a test that fails; elements of the recorded call and of the smallest one."""

    check: str
    operator: str
    diagnosis: str
    elements: int | None
    minimal: int | None
    command: str


@dataclass(frozen=True, slots=True)
class View:
    """The whole report."""

    title: str
    hypothesis: str
    written_at: str
    banner: Banner
    figures: tuple[Figure, ...]
    properties: tuple[PropertyRow, ...]
    timeline: Timeline
    faults: tuple[FaultRow, ...]
    false_alarms: tuple[FalseAlarm, ...]
    false_alarms_total: int
    phases: tuple[PhaseRow, ...]
    diffs: tuple[TokenDiff, ...]
    diffs_total: int
    degraded: tuple[DegradedAnswer, ...]
    degraded_by_label: tuple[tuple[str, int], ...]
    degraded_total: int
    sins: tuple[SinRow, ...]
    caveats: tuple[Caveat, ...]
    steps: tuple[NextStep, ...]
    reproductions: tuple[ReproductionRow, ...] = field(default=())
    environment: tuple[Fact, ...] = field(default=())
    certificate: tuple[Fact, ...] = field(default=())
