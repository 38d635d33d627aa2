"""The gate inside an engine: holds each step's tokens until its verdict is in, then settles."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from tocsin.checker.announce import Announcer
from tocsin.checker.breaker import Breaker
from tocsin.checker.counters import Counters
from tocsin.checker.degradation import Degrader
from tocsin.checker.evaluation import WATERMARK
from tocsin.checker.guard import Guard
from tocsin.checker.journal import Journal
from tocsin.checker.recovery import Ladder, Outcome, Resolution
from tocsin.checker.runtime import checks_with
from tocsin.checker.sampling import SampledCounts, Sampler
from tocsin.checker.settings import CheckerSettings
from tocsin.checker.surroundings import Surroundings
from tocsin.checker.watermark import REASON, Level, Watermark
from tocsin.checker.weights import Tile, WeightStore
from tocsin.checker.window import FailureWindow
from tocsin.core.calls import WeightCall
from tocsin.core.clock import Clock, SystemClock
from tocsin.core.degrade import p0_reason
from tocsin.core.protocols import PageStore, Sink, StepAttempt
from tocsin.core.terms import Action, Cause, Layer, Operator, Phase
from tocsin.core.verdict import Failure, Finding, Settlement

Recorded = Callable[[Failure, str], None]

_REQUESTS_REMEMBERED = 4096
_DEGRADED_BACKEND = "sdpa"
_WEIGHTS = "weights"


class GuardGate:
    """Reads the verdict of each step, climbs the ladder, decides for each row; `core.Gate`.

    Args:
        guard: the checks, attached to the engine's model on the engine's seams.
        choice: the breaker that the engine asks for its backend.
        weights: sums and cold copy; None: weights are not verified.
        pages: the engine's paged memory; None: there is none.
        recorded: hears of a failure first of all, with the operator that failed.
        surroundings: what records say about requests, traces, chaos and the engine.

    Attributes:
        sampler: chooses the requests that are checked in full, and whose turn it is.
        degrader: takes degrade orders; the gate gives its own when an operator fails too often.
        settle_s: what the last settlement took, the verdict's reading included.
        kind: of the last step, "prefill" or "decode".
    """

    def __init__(
        self,
        guard: Guard,
        choice: Breaker,
        weights: WeightStore | None,
        *,
        pages: PageStore | None = None,
        sink: Sink | None = None,
        journal: Journal | None = None,
        clock: Clock | None = None,
        settings: CheckerSettings | None = None,
        replica: str = "",
        model_name: str = "",
        recorded: Recorded | None = None,
        surroundings: Surroundings | None = None,
    ) -> None:
        """Listen to the readings of free memory."""
        self.guard = guard
        self.choice = choice
        self.weights = weights
        self.settings = settings or CheckerSettings()
        self.journal = journal or Journal(counters=guard.runtime.counters)
        self.watermark = Watermark(
            self.settings.degrade_free_bytes,
            self.settings.essential_free_bytes,
            self.settings.recover_factor,
            self._memory_changed,
        )
        self._runtime = guard.runtime
        self.sampler = Sampler(guard.switchboard, guard.runtime.units)
        self._sampled_counts = SampledCounts(guard.runtime.flush)
        self._sample()
        self._clock: Clock = clock or SystemClock()
        self._ladder = Ladder(choice, weights, pages, self.settings, self._run_again)
        self._announcer = Announcer(
            sink=sink,
            journal=self.journal,
            clock=self._clock,
            counters=guard.runtime.counters,
            replica=replica,
            model_name=model_name,
            recorded=self._heard,
            surroundings=surroundings or Surroundings(),
        )
        self.degrader = Degrader(choice, guard.runtime.switchboard, self._clock)
        self.settle_s = 0.0
        self.kind = ""
        self._window = FailureWindow(self._clock)
        self._recorded = recorded
        self._vetoed = False
        self._backend = ""
        self._scrubbed: WeightCall | None = None
        self._tiles: tuple[Tile, ...] = ()
        self._step = -1
        self._memory_fell = False
        self._low_memory: Finding | None = None
        self._recomputes: OrderedDict[str, int] = OrderedDict()
        self._unlisten = guard.seams.add_check(
            Operator.DEVICE_MEMORY, Phase.BEFORE, self.watermark.hear
        )

    @property
    def counters(self) -> Counters:
        """What was checked, found and repaired so far."""
        return self.guard.counters

    def ratio_peaks(self) -> dict[Layer, float]:
        """How near the checks of the last step came to their limits without an alarm, by layer."""
        return self._runtime.evaluation.peaks()

    def apply(self, settings: CheckerSettings) -> None:
        """Go on with other settings, all of them or none; between two steps, on their thread.

        Orders in force, open circuits, counters and what the journal holds stay as they are.

        Raises:
            ValueError: `thresholds` names an unknown check or limit; nothing has changed.
        """
        units, before = checks_with(settings.thresholds), self.settings
        self.journal.apply(settings.journal)
        self.settings = settings
        self._ladder.limit(settings)
        self.choice.limit(failures_max=settings.failures_max, cooldown_s=settings.cooldown_s)
        self.watermark.mark(
            settings.degrade_free_bytes, settings.essential_free_bytes, settings.recover_factor
        )
        if settings.thresholds != before.thresholds:
            self._runtime.adopt(units)
        self._sample()
        switchboard = self._runtime.switchboard
        if settings.profile != switchboard.profile:
            switchboard.set_profile(settings.profile, "configured")

    def close(self) -> None:
        """Stop listening, finish the journal; the guard is detached by its owner."""
        self._unlisten()
        self.journal.close()

    def open(self, attempt: StepAttempt) -> None:
        """A step begins, or is run again."""
        self.degrader.expire()
        self._vetoed = False
        self._scrubbed = None
        self._backend = attempt.backend
        kept = self._runtime.evaluation.kept
        if attempt.step != self._step:
            self._step = attempt.step
            kept.bytes_max = self.journal.settings.capture_bytes_max
            sampled = self.sampler.begin(attempt.step, attempt.request_ids)
            self._sampled_counts.begin(sampled=sampled)
            self._runtime.begin(attempt.step)
        else:
            kept.bytes_max = 0  # only the first run is told about
            self._runtime.again()

    def may_launch(self) -> bool:
        """Whether the host-side checks and free memory allow the launch on this backend."""
        allowed = self._runtime.may_launch() and self.choice.allows(self._backend)
        self._vetoed = self._vetoed or not allowed
        return allowed

    def settle(self, attempt: StepAttempt, error: Exception | None) -> Settlement:
        """Read the verdict, climb the recovery ladder if need be, decide for each row."""
        began_ns = self._clock.now_ns()
        counters = self._runtime.counters
        counters.steps += 1
        first = self._outcome(attempt, error, scrub=True)
        live = frozenset(row for row, request in enumerate(attempt.request_ids) if request)
        low_memory = self._low_memory
        if not first.bad_rows(live):
            resolution = Resolution(Cause.TRANSIENT, first, runs=1)
            failures: tuple[Failure, ...] = ()
            actions = self._actions(attempt, resolution)
            if low_memory is not None:
                failures = (self._announcer.low_memory(attempt, low_memory, actions),)
                self._low_memory = None
        else:
            opening = self._announcer.open(attempt, first, self._runtime)
            resolution = self._ladder.climb(attempt, first)
            actions = self._actions(attempt, resolution)
            low_memory = self._low_memory
            failures = (
                self._announcer.failure(
                    opening, attempt, first, resolution, actions, low_memory, began_ns
                ),
            )
            self._low_memory = None
        if resolution.last.error is None and not resolution.last.findings:
            self.choice.succeeded(resolution.last.backend)
        self._runtime.end()
        self._runtime.evaluation.kept.clear()
        checks_ran = self._runtime.verdict().checks_run > 0
        labels = self.choice.degraded(resolution.last.backend)
        self._announcer.label(labels, attempt.step)
        self._count(attempt, actions, checks_ran)
        self._sampled_counts.end()
        self.kind, self.settle_s = attempt.kind, (self._clock.now_ns() - began_ns) / 1e9
        return Settlement(actions, labels, checks_ran, failures)

    def aside(self, finding: Finding, step: int, pages: tuple[int, ...]) -> None:
        """Record what the engine found and put right beside its steps; no row depends on it."""
        self._announcer.aside(finding, step, self.kind, pages)

    def status(self) -> dict[str, Any]:
        """JSON-safe: checks, breaker, memory, counters."""
        return {
            **self.guard.status(),
            "sample": {"seen": self.sampler.seen, "chosen": self.sampler.chosen},
            "breaker": self.choice.status(),
            "memory": {
                "level": self.watermark.level.name.lower(),
                "free_bytes": self.watermark.free_bytes,
            },
            "counters": self.counters.as_dict(),
        }

    def _sample(self) -> None:
        """Shares, turns and levels as the settings have them."""
        chosen = self.settings
        self.sampler.limit(
            share=chosen.sample, seed=chosen.sample_seed, rotate_steps=chosen.rotate_steps
        )
        self._runtime.switchboard.set_levels(chosen.levels, "configured")

    def _heard(self, failure: Failure) -> None:
        """A failure is recorded: counted where no kill undoes it, and too many of them degrade."""
        first = failure.findings[0].operator if failure.findings else Operator.ATTENTION
        operator = str(first)
        if self._recorded is not None:
            self._recorded(failure, operator)
        crossed, reason = self._window.tick(operator), p0_reason(operator)
        # An order that has run out while the operator goes on failing is given again.
        if crossed or (self._window.over(operator) and not self.degrader.in_force(reason)):
            self.degrader.degrade(operator, reason=reason)

    def _outcome(
        self, attempt: StepAttempt, error: Exception | None, *, scrub: bool = False
    ) -> Outcome:
        if scrub and error is None and not self._vetoed:
            self._scrub()
        findings = self._runtime.verdict().findings
        low = next((finding for finding in findings if finding.check == WATERMARK), None)
        if low is not None and self._memory_fell:
            self._low_memory, self._memory_fell = low, False
        launched = error is None and not self._vetoed
        return Outcome(
            backend=attempt.backend,
            findings=tuple(map(self._named, (one for one in findings if one.check != WATERMARK))),
            error=error,
            launched=launched,
            tokens=attempt.tokens() if launched else (),
        )

    def _run_again(self, attempt: StepAttempt, backend: str) -> Outcome:
        """One more run of the step, on the backend that the ladder wants."""
        self._runtime.counters.reruns += 1
        self.open(attempt)
        self._backend = backend
        error: Exception | None = None
        try:
            attempt.run(backend)
        except Exception as raised:  # noqa: BLE001 - the ladder decides what an error means
            error = raised
        return self._outcome(attempt, error)

    def _scrub(self) -> None:
        """Verify a few weight tiles and let the checks compare the sums."""
        if self.weights is None or not self.settings.scrub_bytes:
            return
        if not self.guard.seams.wanted(Operator.WEIGHT, Phase.AFTER):
            return
        with torch.no_grad():
            self._tiles, sums, expected = self.weights.scrub(self.settings.scrub_bytes)
            self._scrubbed = WeightCall(module=_WEIGHTS, sums=sums, sums_expected=expected)
            self.guard.seams.emit(self._scrubbed)

    def _named(self, finding: Finding) -> Finding:
        """With the tile that the scrub found; only now that something is wrong is it looked up."""
        call = self._scrubbed
        if finding.operator is not Operator.WEIGHT or call is None:
            return finding
        # A synchronisation, but only after an alarm: the step is held anyway.
        wrong = (call.sums != call.sums_expected).nonzero().flatten().tolist()
        if not wrong:
            return finding
        call.module = str(self._tiles[wrong[0]])
        message = call.module + finding.message.removeprefix(_WEIGHTS)
        return replace(finding, module=call.module, message=message)

    def _actions(self, attempt: StepAttempt, resolution: Resolution) -> tuple[Action, ...]:
        """Release what the last run shows to be clean; recompute lost pages; refuse the rest."""
        live = frozenset(
            row
            for row, request in enumerate(attempt.request_ids)
            if request and request not in resolution.recompute
        )
        bad = frozenset() if resolution.refuted else resolution.last.bad_rows(live)
        actions: list[Action] = []
        for row, request in enumerate(attempt.request_ids):
            if request in resolution.recompute and request:
                actions.append(self._recompute_or_refuse(request))
            else:
                actions.append(Action.REFUSE if row in bad else Action.RELEASE)
        return tuple(actions)

    def _recompute_or_refuse(self, request: str) -> Action:
        """A request whose pages keep going bad is refused in the end."""
        count = self._recomputes.pop(request, 0) + 1
        self._recomputes[request] = count
        while len(self._recomputes) > _REQUESTS_REMEMBERED:
            self._recomputes.popitem(last=False)
        return Action.RECOMPUTE if count <= self.settings.recomputes_max else Action.REFUSE

    def _count(self, attempt: StepAttempt, actions: tuple[Action, ...], checks_ran: bool) -> None:
        tokens = attempt.tokens() if Action.RELEASE in actions else ()
        released = sum(
            token >= 0 and action is Action.RELEASE
            for token, action in zip(tokens, actions, strict=False)
        )
        if checks_ran:
            self._runtime.counters.verified_tokens += released
        else:
            self._runtime.counters.unverified_tokens += released

    def _memory_changed(self, before: Level, after: Level) -> None:
        """Degrade, or recover, when a watermark is crossed."""
        if after >= Level.DEGRADE:
            self.choice.force(REASON, _DEGRADED_BACKEND)
        else:
            self.choice.unforce(REASON)
        self._runtime.set_essential_only(after is Level.ESSENTIAL)
        # One failure for each fall; a step under low memory is not a new one.
        self._memory_fell = after > before
