"""What the engine looks after beside its steps: lost pages, thrashing, its pace and its clock."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from tocsin.core.history import EventKind
from tocsin.core.seams import Seams
from tocsin.core.terms import Layer, Operator, Phase, Priority
from tocsin.core.verdict import Finding
from tocsin.engine.ledger import Ledger
from tocsin.engine.pace import ClockWatch, Pace

Aside = Callable[[Finding, int, tuple[int, ...]], None]
"""Hears of a finding that concerns no row of a step: the finding, the step, its pages."""

PAGE_AUDIT = "service.page_audit"
PREEMPTION_RATE = "service.preemption_rate"
BESIDE_STEPS = {PAGE_AUDIT: Layer.STATE, PREEMPTION_RATE: Layer.MEMORY}
"""What may be found beside the steps, and under which layer it is counted."""
WINDOW_STEPS = 64
"""Steps over which preemptions are counted."""
_PAGES_A_STEP = 64
"""An audit looks at every page: in a large pool it comes so seldom that it stays cheap."""
_PREEMPTED_MIN = 3
_SHOWN_MAX = 16


@dataclass(slots=True)
class Upkeep:
    """Audits the page books every so many steps and at rest; watches preemptions, pace and clock.

    Nothing of it is done while the checks of KV reads are off: then nobody would hear of it.

    Attributes:
        every: steps from one audit to the next.
        aside: who is told; None: nobody.
        storming: more requests lose their pages than come to an end.
    """

    ledger: Ledger
    seams: Seams
    every: int
    aside: Aside | None = None
    storming: bool = False
    pace: Pace = field(default_factory=Pace)
    _clocks: ClockWatch = field(init=False)
    _seen: deque[tuple[int, int, int]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        """A pool of very many pages is looked at less often."""
        self.every = max(self.every, self.ledger.pool.pages_total // _PAGES_A_STEP)
        self._clocks = ClockWatch(self.ledger.clock)

    def after_step(self, took_s: float | None) -> None:
        """A step is settled: look at the rate, and at the books when it is their turn.

        Args:
            took_s: of a decode step that was run once; None: of another one.
        """
        if self.aside is None or not self._wanted():
            return
        self._watch_time(took_s)
        self._watch_rate(self.aside)
        if self.ledger.step % self.every == 0:
            self._audit(self.aside)

    def at_rest(self) -> None:
        """The engine has fallen idle: a storm is over, and every page must be accounted for."""
        if self.storming:
            self._calm()
        self._seen.clear()
        if self.aside is not None and self._wanted():
            self._audit(self.aside)

    def _wanted(self) -> bool:
        return self.seams.checked(Operator.KV_READ, Phase.BEFORE)

    def _audit(self, aside: Aside) -> None:
        """Give back what is counted for nobody, and say which pages these were."""
        found = self.ledger.pool.reclaim(self.ledger.sequences)
        if not found:
            return
        pages = tuple(sorted(found))
        shown = ", ".join(map(str, pages[:_SHOWN_MAX])) + ", …" * (len(pages) > _SHOWN_MAX)
        holders = ", ".join(sorted({who for who in found.values() if who})) or "nobody"
        message = (
            f"kv pages {shown}: are counted for {holders}, expected to be free: no such request is "
            f"here; they were given back, look for the free that was missed [{PAGE_AUDIT}]"
        )
        impact = "pages that nobody can use are missing: fewer requests fit, and in the end none"
        aside(_finding(PAGE_AUDIT, len(pages), message, impact), self._step, pages)

    def _watch_time(self, took_s: float | None) -> None:
        """Tell when this replica begins or ends to straggle, and when its clock was moved."""
        if took_s is not None and self.pace.took(took_s):
            usual_ms, step_ms = round(1e3 * self.pace.usual_s, 3), round(1e3 * took_s, 3)
            slow = self.pace.straggling
            kind = EventKind.REPLICA_SLOW if slow else EventKind.REPLICA_STEADY
            self.ledger.tell(kind, None, step_ms=step_ms, usual_ms=usual_ms, priority=Priority.P2)
        moved_s = self._clocks.moved_s()
        if moved_s:
            moved = round(moved_s, 3)
            self.ledger.tell(EventKind.CLOCK_MOVED, None, seconds=moved, priority=Priority.P2)

    def _watch_rate(self, aside: Aside) -> None:
        """Tell once when a storm begins; admit with care until it is over.

        It is over when hardly anybody is preempted and nobody waits for pages: to admit as before
        any earlier would only bring it back.
        """
        now = (self._step, self.ledger.preemptions, self.ledger.completed)
        self._seen.append(now)
        while self._seen[0][0] <= now[0] - WINDOW_STEPS:
            self._seen.popleft()
        _, preempted_before, completed_before = self._seen[0]
        preempted, completed = now[1] - preempted_before, now[2] - completed_before
        limit = max(_PREEMPTED_MIN, self.ledger.config.slots // 2)
        if self.storming:
            if 2 * preempted < limit and not self._short_of_pages():
                self._calm()
            return
        if preempted < limit or preempted <= completed:
            return
        self.storming = self.ledger.scheduler.careful = True
        message = (
            f"kv pages: {preempted} requests lost their pages within {WINDOW_STEPS} steps and "
            f"{completed} were completed, expected fewer than {limit} or more that are completed; "
            f"only what fits to its end is admitted now, give the pool more pages or the replica "
            f"fewer requests [{PREEMPTION_RATE}]"
        )
        impact = "the same tokens are computed again and again: throughput collapses under load"
        ratio = preempted / max(1, limit - 1, completed)
        aside(_finding(PREEMPTION_RATE, ratio, message, impact), self._step, ())
        self.ledger.tell(EventKind.LOAD_SHED, None, on=True, preempted=preempted)

    def _short_of_pages(self) -> bool:
        """Whether somebody waits for pages: with all slots taken, it is for a slot that they do."""
        scheduler = self.ledger.scheduler
        return bool(scheduler.waiting) and len(scheduler.running) < self.ledger.config.slots

    def _calm(self) -> None:
        self.storming = self.ledger.scheduler.careful = False
        self.ledger.tell(EventKind.LOAD_SHED, None, on=False)

    @property
    def _step(self) -> int:
        return self.ledger.step


def _finding(check: str, ratio: float, message: str, impact: str) -> Finding:
    return Finding(
        check=check,
        operator=Operator.KV_UPDATE,
        layer=BESIDE_STEPS[check],
        priority=Priority.P1,
        ratio=float(ratio),
        module="kv pages",
        rows=(),
        message=message,
        impact=impact,
    )
