"""What is known of every request in the engine, and what a settled step makes of it."""

from typing import Any

from tocsin.core.clock import Clock
from tocsin.core.history import Event, EventKind
from tocsin.core.protocols import Sink
from tocsin.core.requests import EngineEvent, Finish, FinishEvent, TokenEvent
from tocsin.core.terms import Action, Operator
from tocsin.core.verdict import Settlement
from tocsin.engine.config import EngineConfig
from tocsin.engine.fingerprint import is_told, logits_crc
from tocsin.engine.pages import PagePool
from tocsin.engine.scheduler import Scheduler
from tocsin.engine.sequence import Sequence
from tocsin.engine.step import Attempt


class Ledger:
    """All requests from submission to their one ending; nobody else ends or releases.

    Attributes:
        sequences: by request id, waiting ones included.
        step: number of steps begun so far.
        completed: requests that came to the end of their answer.
    """

    def __init__(
        self, config: EngineConfig, pool: PagePool, sink: Sink, clock: Clock, replica: str
    ) -> None:
        """No request is known yet."""
        self.config, self.pool = config, pool
        self.sink, self.clock = sink, clock
        self.sequences: dict[str, Sequence] = {}
        self.scheduler = Scheduler(config, pool, self.preempted)
        self.step = self.preemptions = self.released = self.unverified = self.completed = 0
        self._replica = replica

    def settle(
        self,
        attempt: Attempt,
        row: int,
        sequence: Sequence,
        settlement: Settlement,
        error: Exception | None,
        events: list[EngineEvent],
    ) -> None:
        """Do with one row of a step what its settlement says."""
        action = settlement.actions[row]
        failure_id, why = _failure(settlement, sequence.request_id)
        if action is Action.RELEASE and sequence.lost_pages:
            action = Action.RECOMPUTE
        if action is Action.RELEASE and attempt.complete:
            self._commit(attempt, row, sequence, settlement, events)
        elif action is Action.RECOMPUTE and sequence.recomputes < self.config.recomputes_max:
            attempt.undo_row(row)
            self.recompute(sequence)
        else:
            attempt.undo_row(row)
            finish = Finish.REFUSED
            if not attempt.complete and not why:  # no check found anything: the engine failed
                finish = Finish.ERROR
                why = f"step {attempt.step} did not run: {error or 'the launch was vetoed'}"
            if action is Action.RECOMPUTE:
                why = f"recomputed {sequence.recomputes} times and still failing: {why}"
            told = failure_id is not None and action is Action.REFUSE
            self.end(sequence, finish, events, failure_id, why or str(error or ""), told=told)

    def _commit(
        self,
        attempt: Attempt,
        row: int,
        sequence: Sequence,
        settlement: Settlement,
        events: list[EngineEvent],
    ) -> None:
        """The row's verdict is in: its keys and values count, its token leaves."""
        span = attempt.plan.positions[row]
        sequence.computed = span.stop
        sequence.adopted = False
        self.pool.advance(sequence.request_id, span.stop)
        sequence.label(settlement.degraded)
        # Another backend has other bits: pages that it wrote, in this step or in an earlier one,
        # serve their own request only.
        own_bits = attempt.backend == self.config.backends[0] and not sequence.degraded
        if self.config.prefix_cache and own_bits:
            self.pool.publish(sequence.request_id, sequence.request.prompt_ids, span.stop)
        choice = attempt.choice(row)
        if choice is None:
            return
        index = span.stop - len(sequence.request.prompt_ids)
        if index < len(sequence.outputs):  # replayed: known already, never released again
            self._compare(sequence, index, choice.token, settlement.verified, events)
            return
        sequence.outputs.append(choice.token)
        self.released += 1
        self.unverified += not settlement.verified
        events.append(
            TokenEvent(
                request_id=sequence.request_id,
                index=index,
                token=choice.token,
                margin=choice.margin,
                verified=settlement.verified,
                degraded=sequence.degraded,
            )
        )
        if attempt.logits is not None and is_told(
            index, sequence.request_id, self.config.logits_told_every
        ):
            crc = logits_crc(attempt.logits[row])
            labelled = bool(sequence.degraded)
            self.tell(EventKind.LOGITS, sequence, index=index, crc=crc, degraded=labelled)
        finish = sequence.finish()
        if finish is not None:
            self.end(sequence, finish, events)

    def _compare(
        self,
        sequence: Sequence,
        index: int,
        token: int,
        verified: bool,
        events: list[EngineEvent],
    ) -> None:
        """A replayed token must be the one that the client holds.

        Without checks nobody looks, as in any engine; with them a difference means that one of
        the two is wrong, and going on would join two answers. An answer that is labelled as
        degraded was made by another backend, whose bits are not promised.
        """
        known = sequence.outputs[index]
        if token == known or not verified or sequence.degraded:
            return
        self.end(
            sequence,
            Finish.REFUSED,
            events,
            message=f"replay: token {index} is {token}, the client holds {known}; send it again",
        )

    def end(
        self,
        sequence: Sequence,
        finish: Finish,
        events: list[EngineEvent],
        failure_id: str | None = None,
        message: str = "",
        told: bool = False,
    ) -> None:
        """The request is over; `told`: the gate has already said that it refused it."""
        self.scheduler.leave(sequence)
        del self.sequences[sequence.request_id]
        self.completed += finish.complete
        events.append(
            FinishEvent(
                request_id=sequence.request_id,
                finish=finish,
                tokens=len(sequence.outputs),
                degraded=sequence.degraded,
                failure_id=failure_id,
                message=message,
            )
        )
        if finish in (Finish.REFUSED, Finish.ERROR) and not told:
            self.tell(
                EventKind.REQUEST_REFUSED,
                sequence,
                failure_id=failure_id,
                finish=str(finish),
                message=message,
            )

    def recompute(self, sequence: Sequence) -> None:
        """Back to the queue, to be replayed from the start."""
        sequence.recomputes += 1
        self.scheduler.requeue(sequence)

    def recompute_others(self) -> None:
        """Requests outside this step whose pages were quarantined in it."""
        for sequence in [one for one in self.scheduler.running if one.lost_pages]:
            self.recompute(sequence)

    def preempted(self, sequence: Sequence) -> None:
        """Count and tell that a request has lost its pages to others."""
        self.preemptions += 1
        self.tell(EventKind.REQUEST_PREEMPTED, sequence, tokens=len(sequence.outputs))

    def end_unservable(self, events: list[EngineEvent]) -> None:
        """Requests for which too few pages are left in working order."""
        while self.scheduler.unservable:
            sequence = self.scheduler.unservable.pop()
            self.end(
                sequence,
                Finish.ERROR,
                events,
                message=f"pages: {self.pool.usable} of {self.pool.pages_total} work, the request "
                f"needs {self.config.pages_for(sequence.longest)}; restart the replica",
            )

    def tell(self, kind: EventKind, sequence: Sequence | None, **data: Any) -> None:
        """Emit an event of this engine."""
        request_id = sequence.request_id if sequence else ""
        self.sink.emit(Event(kind, self.clock.now_ns(), self._replica, self.step, request_id, data))


def _failure(settlement: Settlement, request_id: str) -> tuple[str | None, str]:
    """Id and message of the failure that a request's row belongs to.

    The message is empty when no check found anything wrong with the step: a run raised, and that
    was all. Little free memory is beside it: it refuses nobody.
    """
    for failure in settlement.failures:
        if request_id in failure.request_ids:
            messages = (
                finding.message
                for finding in failure.findings
                if finding.operator is not Operator.DEVICE_MEMORY
            )
            return failure.failure_id, next(messages, "")
    return None, ""
