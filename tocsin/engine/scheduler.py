"""Continuous batching: who is admitted, whose turn it is, and who makes room."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from tocsin.engine.config import EngineConfig
from tocsin.engine.pages import PagePool
from tocsin.engine.sequence import Sequence

PREFILL = "prefill"
DECODE = "decode"


@dataclass(frozen=True, slots=True)
class Plan:
    """One step: a prompt chunk of one request, or one token of every decoding one.

    Attributes:
        rows: the request of each row, None where a slot is idle; one row when prefilling.
        positions: positions that each row computes.
    """

    kind: str
    rows: tuple[Sequence | None, ...]
    positions: tuple[range, ...]


@dataclass(slots=True)
class Scheduler:
    """Waiting and running requests of one engine.

    Prefill chunks and decode steps alternate while both have work, so that neither starves. When
    pages run out, the request that was admitted last gives up its own and is replayed later; the
    first one admitted always goes on, so the whole makes progress.

    Attributes:
        on_preempt: called with each request that loses its pages.
        unservable: requests for which quarantine has left too few pages; to be ended.
        careful: admit only what fits to its end beside those that run, so that nobody is preempted.
    """

    config: EngineConfig
    pool: PagePool
    on_preempt: Callable[[Sequence], None]
    waiting: deque[Sequence] = field(default_factory=deque)
    running: list[Sequence] = field(default_factory=list)
    unservable: list[Sequence] = field(default_factory=list)
    careful: bool = False
    _turns: int = 0
    _last_kind: str = DECODE

    def plan(self) -> Plan | None:
        """The next step with its pages allocated, None when nobody wants one."""
        self._admit()
        prefill_first = self._last_kind == DECODE
        for wants_prefill in (prefill_first, not prefill_first):
            plan = self._plan_prefill() if wants_prefill else self._plan_decode()
            if plan is not None:
                self._last_kind = plan.kind
                return plan
        return None

    def leave(self, sequence: Sequence) -> None:
        """A request is over, or goes back to the queue: give up its slot and pages."""
        self.pool.release(sequence.request_id)
        if sequence in self.running:
            self.running.remove(sequence)
        if sequence in self.waiting:
            self.waiting.remove(sequence)
        sequence.slot = -1

    def requeue(self, sequence: Sequence) -> None:
        """Replay a request from the start, before those that have not run yet."""
        self.leave(sequence)
        sequence.rewind()
        self.waiting.appendleft(sequence)

    def _admit(self) -> None:
        """Fill free slots from the queue, in order, as far as there are pages."""
        while self.waiting and len(self.running) < self.config.slots:
            sequence = self.waiting[0]
            if self.config.pages_for(sequence.longest) > self.pool.usable:
                self.unservable.append(self.waiting.popleft())
                continue
            tokens = len(sequence.request.prompt_ids) + len(sequence.outputs)
            # Pages for all that is known and the next token: the first steps need no eviction of
            # others. An empty engine takes anybody; submit has made sure that one request fits.
            if self.running and self.config.pages_for(tokens + 1) > self.pool.available:
                return
            if self.careful and self.running and not self._fits_to_its_end(sequence):
                return
            self.waiting.popleft()
            taken = {other.slot for other in self.running}
            sequence.slot = next(s for s in range(self.config.slots) if s not in taken)
            sequence.turn, self._turns = self._turns, self._turns + 1
            if self.config.prefix_cache:
                # Whole chunks only: what is computed has the shape that it would have had.
                sequence.computed = self.pool.adopt(
                    sequence.request_id, sequence.request.prompt_ids, self.config.prefill_chunk
                )
                sequence.adopted = sequence.computed > 0
            self.running.append(sequence)

    def _fits_to_its_end(self, sequence: Sequence) -> bool:
        """Whether there are pages for all that it and those that run may still write."""
        wanted = self.config.pages_for(sequence.longest)
        for other in self.running:
            held = len(self.pool.entries(other.request_id))
            wanted += max(0, self.config.pages_for(other.longest) - held)
        return wanted <= self.pool.available

    def _plan_prefill(self) -> Plan | None:
        for sequence in [one for one in self.running if one.is_prefill]:
            chunk = sequence.chunk(self.config.prefill_chunk)
            # One that was preempted to make room for the one before it is no longer running.
            if sequence in self.running and self._make_room(sequence, chunk.stop):
                return Plan(PREFILL, (sequence,), (chunk,))
        return None

    def _plan_decode(self) -> Plan | None:
        for sequence in sorted(self.running, key=lambda one: one.turn):
            # One that was preempted for an earlier one is no longer running.
            if sequence in self.running and not sequence.is_prefill:
                self._make_room(sequence, sequence.computed + 1)
        rows: list[Sequence | None] = [None] * self.config.slots
        positions = [range(1)] * self.config.slots
        for sequence in self.running:
            if not sequence.is_prefill:
                rows[sequence.slot] = sequence
                positions[sequence.slot] = range(sequence.computed, sequence.computed + 1)
        return Plan(DECODE, tuple(rows), tuple(positions)) if any(rows) else None

    def _make_room(self, sequence: Sequence, tokens: int) -> bool:
        """Give the request pages for so many tokens, at the cost of the last one admitted.

        Returns:
            False when that is the request itself: it has gone back to the queue.
        """
        missing = self.config.pages_for(tokens) - len(self.pool.entries(sequence.request_id))
        while missing > self.pool.available:
            victim = max(self.running, key=lambda one: one.turn)
            self.requeue(victim)
            self.on_preempt(victim)
            if victim is sequence:
                return False
        for _ in range(missing):
            self.pool.allocate(sequence.request_id)
        return True
