"""What a step's checks say: findings, the verdict of a step, and what happens to each row."""

from dataclasses import dataclass, field

from tocsin.core.terms import Action, Cause, Layer, Operator, Priority


@dataclass(frozen=True, slots=True)
class Finding:
    """One check that alarmed on one operator call.

    Attributes:
        check: id of the check, which is also its file: `numerical.rms_range`.
        ratio: residual / threshold; 1.0 is the limit, NaN is an alarm.
        module: qualified name of the module, empty outside a model.
        rows: rows of the step that alarmed; empty when the whole call did.
        message: where, what was found, what was expected, what to do, and `[check id]`.
        impact: what the violation does to the service, from the check's declaration.
    """

    check: str
    operator: Operator
    layer: Layer
    priority: Priority
    ratio: float
    module: str
    rows: tuple[int, ...]
    message: str
    impact: str
    depth: int | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """All that the checks found in one step, first failing operator first.

    Attributes:
        checks_run: number of check evaluations behind this verdict; with none it is *unknown*,
            and `ok` is False only if something was found: look at `vacuous`.
    """

    findings: tuple[Finding, ...] = ()
    checks_run: int = 0

    @property
    def ok(self) -> bool:
        """No check alarmed."""
        return not self.findings

    @property
    def vacuous(self) -> bool:
        """No check ran at all: nothing is known about the step."""
        return self.checks_run == 0

    def rows(self) -> frozenset[int]:
        """Rows with an alarm of their own."""
        return frozenset(row for finding in self.findings for row in finding.rows)

    def whole_step(self) -> bool:
        """Whether some finding cannot be pinned to rows and so concerns all of them."""
        return any(not finding.rows for finding in self.findings)


@dataclass(frozen=True, slots=True)
class Failure:
    """An alarm that was recorded: what was found, for whom, and what was done about it."""

    failure_id: str
    findings: tuple[Finding, ...]
    request_ids: tuple[str, ...]
    step: int
    cause: Cause
    action: Action
    pages: tuple[int, ...] = ()
    runs: int = 1


@dataclass(frozen=True, slots=True)
class Settlement:
    """The end of a step: what to do with each row, and how the step came to it.

    Attributes:
        actions: one action a row of the step.
        degraded: reasons that the answer of every released row must carry, empty when none.
        verified: whether a verdict stands behind the released rows; False only with checks off.
        failures: failures recorded on the way, empty for a clean step.
    """

    actions: tuple[Action, ...]
    degraded: tuple[str, ...] = ()
    verified: bool = True
    failures: tuple[Failure, ...] = field(default=())
