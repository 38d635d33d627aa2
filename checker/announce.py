"""Every alarm becomes a failure: counted, journalled, and told with all that followed from it."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tocsin.checker.capture import Captured, capture, store
from tocsin.checker.counters import Counters
from tocsin.checker.journal import Admission, Journal
from tocsin.checker.journal.files import SNAPSHOTS
from tocsin.checker.record import code_of, failure_record
from tocsin.checker.recovery import Outcome, Resolution
from tocsin.checker.runtime import Runtime
from tocsin.checker.surroundings import Surroundings
from tocsin.core.clock import Clock
from tocsin.core.history import Event, EventKind
from tocsin.core.ids import new_ulid
from tocsin.core.protocols import Sink, StepAttempt
from tocsin.core.terms import Action, Cause, Operator
from tocsin.core.verdict import Failure, Finding

_LOG = logging.getLogger("tocsin.checker")


@dataclass(slots=True)
class Opening:
    """A failure between its alarm and its settlement.

    Attributes:
        admission: what the journal does with it.
        captured: its calls.
        stored: they are on their way to the disk.
    """

    failure_id: str
    admission: Admission
    captured: Captured
    stored: bool = False


class Announcer:
    """Speaks for the gate of one replica."""

    def __init__(
        self,
        *,
        sink: Sink | None,
        journal: Journal,
        clock: Clock,
        counters: Counters,
        replica: str,
        model_name: str,
        recorded: Callable[[Failure], None],
        surroundings: Surroundings,
    ) -> None:
        """Nothing is labelled yet.

        Args:
            recorded: hears of a failure before anything else is done about it.
        """
        self._recorded = recorded
        self._surroundings = surroundings
        self.journal = journal
        self._sink = sink
        self._clock = clock
        self._counters = counters
        self._replica = replica
        self._model_name = model_name
        self._labels: tuple[str, ...] = ()

    def open(self, attempt: StepAttempt, first: Outcome, runtime: Runtime) -> Opening:
        """A failure begins: its calls are taken, before the step is run again and they are gone."""
        findings = first.findings
        operator = str(findings[0].operator if findings else Operator.ATTENTION)
        code = code_of(findings[0] if findings else None, first.error)
        pairs = dict.fromkeys((str(one.operator), one.check) for one in findings)
        failure_id = new_ulid(int(self._clock.wall_s() * 1000))
        admission = self.journal.admit(operator, code, failure_id, tuple(pairs))
        opening = Opening(failure_id, admission, Captured())
        try:
            self._take(opening, attempt, findings, runtime)
        except Exception as error:  # noqa: BLE001 - no memory, a lost device: the step goes on
            opening.captured.note = f"no snapshot: {type(error).__name__}: {error}"[:300]
            _LOG.error("journal: the calls of %s were not taken: %s", failure_id, error)
        return opening

    def _take(
        self,
        opening: Opening,
        attempt: StepAttempt,
        findings: tuple[Finding, ...],
        runtime: Runtime,
    ) -> None:
        """Copy the failing calls and hand them to the journal's thread."""
        journal, units = self.journal, runtime.units
        opening.captured = captured = capture(
            runtime.evaluation.kept.calls,
            findings,
            opening.admission,
            units,
            journal.settings,
            self._counters,
            storing=journal.folder is not None,
        )
        if captured.exhibits:
            prompts = journal.settings.journal_prompts
            request = self._surroundings.request_document(attempt, prompts=prompts)
            opening.stored = store(journal, opening.failure_id, captured.exhibits, units, request)
            if not opening.stored:
                captured.note = "no snapshot: too many wait for the disk already"

    def failure(
        self,
        opening: Opening,
        attempt: StepAttempt,
        first: Outcome,
        resolution: Resolution,
        actions: tuple[Action, ...],
        low_memory: Finding | None,
        began_ns: int,
    ) -> Failure:
        """One failure: journalled, counted and told."""
        findings = _unique(
            (*first.findings, *([low_memory] if low_memory else ()), *resolution.found)
        )
        live = frozenset(row for row, request in enumerate(attempt.request_ids) if request)
        rows = first.bad_rows(live)
        requests = dict.fromkeys(attempt.request_ids[row] for row in sorted(rows))
        requests.update(dict.fromkeys(sorted(resolution.recompute)))
        failure = Failure(
            failure_id=opening.failure_id,
            findings=findings,
            request_ids=tuple(requests),
            step=attempt.step,
            cause=resolution.cause,
            action=_gravest(actions),
            pages=tuple(resolution.pages),
            runs=resolution.runs,
        )
        duration_ms = (self._clock.now_ns() - began_ns) / 1e6
        self._publish(opening, failure, attempt, duration_ms, resolution, first)
        self._tell_consequences(failure, attempt, resolution, actions)
        return failure

    def low_memory(
        self, attempt: StepAttempt, finding: Finding, actions: tuple[Action, ...]
    ) -> Failure:
        """The watermark was crossed under a step that was itself clean."""
        return self._beside(attempt, finding, Cause.PERSISTENT, _gravest(actions), ())

    def aside(self, finding: Finding, step: int, kind: str, pages: tuple[int, ...]) -> Failure:
        """Something was found that concerns no row of a step, and is put right already.

        Args:
            step: the last one that was begun; kind: of it.
        """
        return self._beside(_Between(step, kind), finding, Cause.STATE, Action.RELEASE, pages)

    def _beside(
        self,
        attempt: "StepAttempt | _Between",
        finding: Finding,
        cause: Cause,
        action: Action,
        pages: tuple[int, ...],
    ) -> Failure:
        failure_id = new_ulid(int(self._clock.wall_s() * 1000))
        admission = self.journal.admit(str(finding.operator), finding.check, failure_id)
        failure = Failure(
            failure_id=failure_id,
            findings=(finding,),
            request_ids=(),
            step=attempt.step,
            cause=cause,
            action=action,
            pages=pages,
        )
        opening = Opening(failure_id, admission, Captured())
        self._publish(opening, failure, attempt, 0.0, None, None)
        return failure

    def _publish(
        self,
        opening: Opening,
        failure: Failure,
        attempt: "StepAttempt | _Between",
        duration_ms: float,
        resolution: Resolution | None,
        first: Outcome | None,
    ) -> None:
        self._recorded(failure)
        counters = self._counters
        counters.causes[str(failure.cause)] += 1
        for finding in failure.findings:
            key = (str(finding.operator), str(finding.layer), finding.check, str(finding.priority))
            counters.failures[key] += 1
        error = first.error if first is not None else None
        if error is None and resolution is not None and resolution.errors:
            error = resolution.errors[0][1]
        record = failure_record(
            failure,
            wall_s=self._clock.wall_s(),
            replica=self._replica,
            model=self._model_name,
            kind=attempt.kind,
            backend=first.backend if first is not None else attempt.backend,
            settled_on=attempt.backend,
            duration_ms=duration_ms,
            admission=opening.admission,
            surroundings=self._surroundings,
            described=opening.captured.described,
            snapshot=f"{SNAPSHOTS}/{failure.failure_id}" if opening.stored else "",
            snapshot_note=opening.captured.note,
            error=error,
        )
        self.journal.write(record, opening.admission)
        if failure.findings or error is None:
            self._tell(attempt.step, EventKind.CHECK_FAILED, record)
        if resolution is not None:
            for backend, raised in resolution.errors:
                self._tell(
                    attempt.step,
                    EventKind.BACKEND_ERROR,
                    {
                        "failure_id": failure.failure_id,
                        "operator": str(Operator.ATTENTION),
                        "backend": backend,
                        "error": str(raised),
                        "settled_on": attempt.backend,
                    },
                )

    def _tell_consequences(
        self,
        failure: Failure,
        attempt: StepAttempt,
        resolution: Resolution,
        actions: tuple[Action, ...],
    ) -> None:
        counters = self._counters
        base = {"failure_id": failure.failure_id}
        if resolution.pages:
            counters.pages_quarantined += len(resolution.pages)
            data = {**base, "pages": resolution.pages, "holders": sorted(resolution.recompute)}
            self._tell(attempt.step, EventKind.PAGES_QUARANTINED, data)
        for tile in resolution.tiles:
            counters.weights_repaired += 1
            self._tell(
                attempt.step,
                EventKind.WEIGHT_REPAIRED,
                {**base, "tensor": tile.tensor, "tile": tile.index},
            )
        refused = {
            request
            for request, action in zip(attempt.request_ids, actions, strict=True)
            if action is Action.REFUSE and request
        }
        for request in sorted(resolution.recompute - refused):
            self._tell(attempt.step, EventKind.REQUEST_RECOMPUTED, base, request)
        for request in sorted(refused):
            self._tell(attempt.step, EventKind.REQUEST_REFUSED, base, request)

    def label(self, labels: tuple[str, ...], step: int) -> None:
        """The labels of a step's answers; a change is told, so that a label can be proved."""
        for reason in self._labels:
            if reason not in labels:
                self._tell(step, EventKind.DEGRADED, {"reason": reason, "on": False})
        for reason in labels:
            if reason not in self._labels:
                self._tell(step, EventKind.DEGRADED, {"reason": reason, "on": True})
        self._labels = labels

    def _tell(self, step: int, kind: EventKind, data: dict[str, Any], request_id: str = "") -> None:
        if self._sink is None:
            return
        self._sink.emit(
            Event(kind, self._clock.now_ns(), self._replica, step, request_id, dict(data))
        )


@dataclass(frozen=True, slots=True)
class _Between:
    """In place of an attempt, where no step is under way."""

    step: int
    kind: str
    backend: str = ""


def _gravest(actions: tuple[Action, ...]) -> Action:
    for action in (Action.REFUSE, Action.RECOMPUTE):
        if action in actions:
            return action
    return Action.RELEASE


def _unique(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Each check on each module once, in order."""
    kept: dict[tuple[str, str, int | None], Finding] = {}
    for finding in findings:
        kept.setdefault((finding.check, finding.module, finding.depth), finding)
    return tuple(kept.values())
