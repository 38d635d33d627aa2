"""The recovery ladder: hold, run again, fall back, verify sums and repair, refute, or refuse."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import isfinite

from tocsin.checker.breaker import Breaker
from tocsin.checker.settings import CheckerSettings
from tocsin.checker.weights import Tile, WeightStore
from tocsin.core.errors import BackendError, HealError
from tocsin.core.protocols import PageStore, StepAttempt
from tocsin.core.terms import Cause, Layer, Operator, Priority
from tocsin.core.verdict import Finding


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one run of a step ended.

    Attributes:
        findings: what the checks found, without the memory watermark.
        error: what the run raised, None when it came through.
        launched: False when the host-side checks or the watermark vetoed the launch.
        tokens: what each row would release; empty when the run raised or was vetoed.
    """

    backend: str
    findings: tuple[Finding, ...]
    error: Exception | None
    launched: bool
    tokens: tuple[int, ...]

    def bad_rows(self, live: frozenset[int]) -> frozenset[int]:
        """Live rows that must not be released from this run."""
        if self.error is not None or not self.launched:
            return live
        if any(not finding.rows for finding in self.findings):
            return live
        return live & frozenset(row for finding in self.findings for row in finding.rows)


@dataclass(slots=True)
class Resolution:
    """Where the ladder ended.

    Attributes:
        last: the run whose rows are settled; its tokens are the attempt's.
        recompute: requests whose pages were lost.
        pages: pages quarantined; tiles: weight tiles repaired.
        found: findings made by the ladder itself while it verified sums.
        refuted: the findings of `last` are rounding: release despite them.
        errors: backends that raised, and what.
    """

    cause: Cause
    last: Outcome
    runs: int
    recompute: set[str] = field(default_factory=set)
    pages: list[int] = field(default_factory=list)
    tiles: list[Tile] = field(default_factory=list)
    found: list[Finding] = field(default_factory=list)
    refuted: bool = False
    errors: list[tuple[str, BackendError]] = field(default_factory=list)


class Ladder:
    """Climbs from the cheapest explanation to the dearest; bounded number of runs a step.

    Args:
        run: runs the attempt again on a backend and reads the verdict.
        weights: None where nobody keeps a cold copy.
        pages: None where the engine has no paged memory.
    """

    def __init__(
        self,
        choice: Breaker,
        weights: WeightStore | None,
        pages: PageStore | None,
        settings: CheckerSettings,
        run: Callable[[StepAttempt, str], Outcome],
    ) -> None:
        """Nothing is under way."""
        self._choice = choice
        self._weights = weights
        self._pages = pages
        self._settings = settings
        self._run = run

    def limit(self, settings: CheckerSettings) -> None:
        """Other bounds from the next climb on."""
        self._settings = settings

    def climb(self, attempt: StepAttempt, first: Outcome) -> Resolution:
        """Find out why the step alarmed, and repair what can be repaired."""
        climb = _Climb(self, attempt, first)
        resolution = climb.resolve()
        found_wrong = resolution.cause is Cause.PERSISTENT and not resolution.errors
        if found_wrong and first.findings and first.backend != resolution.last.backend:
            self._choice.failed(first.backend, _reason(first.findings))
        return resolution


class _Climb:
    """One step on its way up."""

    def __init__(self, ladder: Ladder, attempt: StepAttempt, first: Outcome) -> None:
        self.ladder = ladder
        self.attempt = attempt
        self.first = first
        self.at = Resolution(Cause.UNRESOLVED, first, runs=1)

    def resolve(self) -> Resolution:
        """The rungs in order; the first that explains the alarm ends the climb."""
        degraded = self._leave_failed_backends()
        if self._clean():
            return self._end(Cause.PERSISTENT if degraded else Cause.TRANSIENT)
        if isinstance(self.at.last.error, BackendError):
            return self._end(Cause.UNRESOLVED)  # the chain has ended, or the runs have
        stored = any(finding.layer is Layer.STATE for finding in self.at.last.findings)
        if stored and self._repair_pages() | self._repair_suspect_weights():
            return self._after_repair(self.at.last.backend)
        primary = self.at.last
        if not self._again(primary.backend):
            return self._end(Cause.UNRESOLVED)
        if self._clean():
            return self._end(Cause.PERSISTENT if degraded else Cause.TRANSIENT)
        same = self.at.last
        other_name = self.ladder._choice.fallback(primary.backend)
        if other_name is not None and self._again(other_name) and self._clean():
            return self._end(Cause.PERSISTENT)
        other = self.at.last
        if self._repair_pages() | self._repair_weights():
            return self._after_repair(primary.backend)
        if other is not same and self._legitimate(same, other):
            # Released from the primary: a false alarm must not change the answer's bits.
            self._again(primary.backend)
            if self._legitimate(other, self.at.last):
                self.at.refuted = True
                return self._end(Cause.LEGITIMATE)
        return self._end(Cause.UNRESOLVED)

    def _end(self, cause: Cause) -> Resolution:
        self.at.cause = cause
        return self.at

    def _live(self) -> frozenset[int]:
        """Rows that belong to a request which still has its pages."""
        return frozenset(
            row
            for row, request in enumerate(self.attempt.request_ids)
            if request and request not in self.at.recompute
        )

    def _clean(self) -> bool:
        return not self.at.last.bad_rows(self._live())

    def _again(self, backend: str) -> bool:
        """Run the step once more; False when the bound is reached."""
        if self.at.runs >= self.ladder._settings.runs_max:
            return False
        self.at.last = self.ladder._run(self.attempt, backend)
        self.at.runs += 1
        return True

    def _leave_failed_backends(self) -> bool:
        """Away from a backend that raised, or that memory no longer allows."""
        choice = self.ladder._choice
        moved = False
        while True:
            last = self.at.last
            if isinstance(last.error, BackendError):
                self.at.errors.append((last.backend, last.error))
                choice.failed(last.backend, str(last.error))
                below = choice.fallback(last.backend)
            elif not choice.allows(last.backend):
                below = choice.choose()
            else:
                return moved
            if below is None or not self._again(below):
                return moved
            moved = True

    def _after_repair(self, backend: str) -> Resolution:
        """Something stored was wrong and is right again: finish the rows that are left."""
        if self._live() and self._again(backend) and not self._clean():
            return self._end(Cause.UNRESOLVED)
        return self._end(Cause.STATE)

    def _repair_pages(self) -> bool:
        """Quarantine the pages whose sums or tags are wrong; their holders start over."""
        bad = self.attempt.corrupt_pages()
        if not bad:
            return False
        self._quarantine(bad)
        self.at.found.append(
            _stored(
                "state.kv_page_sum",
                Operator.KV_READ,
                f"kv pages {list(bad)}",
                len(bad),
                "their holders are recomputed",
            )
        )
        return True

    def _quarantine(self, pages: Iterable[int]) -> None:
        pages = tuple(pages)
        self.at.recompute |= set(self.attempt.quarantine(pages))
        self.at.pages += [page for page in pages if page not in self.at.pages]

    def _repair_suspect_weights(self) -> bool:
        """After an alarm of the scrub: repair, and recompute all that the weight has touched.

        When an arithmetic check alarmed too, the fault is of this very step; when only the scrub
        saw it, nobody knows since when the weight has been wrong.
        """
        findings = self.at.last.findings
        if not any(finding.operator is Operator.WEIGHT for finding in findings):
            return False
        if not self._repair_weights():
            return False
        pages = self.ladder._pages
        if pages is not None and all(f.operator is Operator.WEIGHT for f in findings):
            used = [page for page in range(1, pages.data.shape[0]) if pages.tag(page).owner]
            if used:
                self._quarantine(used)
        return True

    def _repair_weights(self) -> bool:
        """Copy every tile back whose sum has changed."""
        weights = self.ladder._weights
        if weights is None:
            return False
        bad = weights.verify()
        repaired = 0
        for tile in bad:
            try:
                weights.repair(tile)
            except HealError as error:
                self.at.found.append(
                    _stored("state.weight_sum", Operator.WEIGHT, str(tile), 1, str(error))
                )
                continue
            repaired += 1
            self.at.tiles.append(tile)
        if repaired:
            self.at.found.append(
                _stored(
                    "state.weight_sum",
                    Operator.WEIGHT,
                    ", ".join(map(str, bad)),
                    repaired,
                    "copied back from the cold copy",
                )
            )
        return repaired > 0

    def _legitimate(self, one: Outcome, two: Outcome) -> bool:
        """Two runs agree on every token and alarm only a little: rounding, not a fault."""
        limit = self.ladder._settings.legitimate_ratio_max
        return all(
            run.error is None
            and run.launched
            and all(
                finding.layer is Layer.NUMERICAL
                and isfinite(finding.ratio)
                and finding.ratio <= limit
                for finding in run.findings
            )
            for run in (one, two)
        ) and bool(one.tokens == two.tokens)


def _stored(check: str, operator: Operator, place: str, count: int, remedy: str) -> Finding:
    """What the ladder itself found while it verified stored sums."""
    return Finding(
        check=check,
        operator=operator,
        layer=Layer.STATE,
        priority=Priority.P0,
        ratio=float("inf"),
        module=place,
        rows=(),
        message=(
            f"{place}: {count} stored sums differ from those recorded, expected none; "
            f"{remedy} [{check}]"
        ),
        impact="answers are computed from memory that has changed under the model",
    )


def _reason(findings: tuple[Finding, ...]) -> str:
    return f"clean only on the fallback: {findings[0].check} at {findings[0].module or 'step'}"
