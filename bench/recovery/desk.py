"""An engine under its real gate that serves the same requests again and again, and is watched."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from torch import nn

from tocsin.checker.breaker import Breaker
from tocsin.checker.gate import GuardGate
from tocsin.checker.guard import attach
from tocsin.checker.settings import CheckerSettings
from tocsin.checker.weights import WeightStore
from tocsin.core.requests import Finish, FinishEvent, Request, TokenEvent
from tocsin.core.terms import BreakerState, Operator, Phase
from tocsin.core.verdict import Failure
from tocsin.engine.config import EngineConfig
from tocsin.engine.engine import ReferenceEngine

ROWS: Final = 3
"""Requests of one round; the fault's victim is the second."""
VICTIM: Final = 1


@dataclass(slots=True)
class Round:
    """What one round of requests showed.

    Attributes:
        answers: tokens by row; finishes: how each ended.
        steps: engine steps; runs: forward passes of the step that alarmed, 1 where none did.
        fired_ns: when the fault first did something, -1: never.
        alarm_ns: when the settlement of the first failure began, -1: none.
        over_ns: when the victim's next token, or its refusal, was out after that, -1: never.
        step_ns: durations of the decode steps before the fault.
    """

    answers: list[list[int]]
    finishes: list[Finish | None]
    failures: list[Failure] = field(default_factory=list)
    steps: int = 0
    fired_ns: int = -1
    alarm_ns: int = -1
    over_ns: int = -1
    step_ns: list[int] = field(default_factory=list)


class Desk:
    """One engine for all rounds: what a rung leaves behind would show in the next.

    Attributes:
        hot: whether the step under way is the one in which the fault may act.
    """

    def __init__(self, model: nn.Module, tokenizer: Any, *, vocabulary: int, tokens: int) -> None:
        """Attach every check to the model; nothing is served yet.

        Args:
            vocabulary: prompts take ids below it.
            tokens: length of each answer.
        """
        self.model = model
        self.hot = False
        self._tokens = tokens
        self._vocabulary = vocabulary
        config = EngineConfig(
            slots=4, page_size=8, pages=64, max_model_len=64, prefill_chunk=16, prefix_cache=False
        )
        self.breaker = Breaker(config.backends, cooldown_s=3600.0)
        self.engine = ReferenceEngine(model, tokenizer, config, choice=self.breaker)
        self.guard = attach(model, "full", seams=self.engine.seams)
        self.gate = GuardGate(
            self.guard,
            self.breaker,
            WeightStore(model),
            pages=self.engine.pages,
            # Free memory is this machine's own affair, and no fault of a rung.
            settings=CheckerSettings(degrade_free_bytes=0, essential_free_bytes=0, scrub_bytes=0),
        )
        self.engine.gate = self.gate
        self._rounds = 0
        self._round: Round | None = None
        settle = self.gate.settle

        def watched(attempt: Any, error: Exception | None) -> Any:
            began_ns = time.monotonic_ns()
            settlement = settle(attempt, error)
            if self._round is not None and settlement.failures:
                self._round.failures += settlement.failures
                if self._round.alarm_ns < 0:
                    self._round.alarm_ns = began_ns
            return settlement

        self.gate.settle = watched  # type: ignore[method-assign]

    def close(self) -> None:
        """Give the model back as it was."""
        self.gate.close()
        self.guard.detach()

    def victim(self) -> str:
        """Id of the request that a fault is aimed at."""
        return f"r{self._rounds}-{VICTIM}"

    def fired(self) -> None:
        """The fault did something: the clock of its detection runs."""
        if self._round is not None and self._round.fired_ns < 0:
            self._round.fired_ns = time.monotonic_ns()

    def listen(
        self, operator: Operator, phase: Phase, act: Callable[[Any], bool]
    ) -> Callable[[], None]:
        """Let a fault reach into the hot step; `act` returns whether it did something."""

        def listener(call: Any) -> None:
            if self.hot and act(call):
                self.fired()

        return self.engine.seams.add_fault(operator, phase, listener)

    def serve(self, before_hot_step: Callable[[], None] = lambda: None) -> Round:
        """Serve all requests to their end; in one decode step of all of them the fault may act."""
        self._rounds += 1
        prefix = f"r{self._rounds}-"
        round_ = self._round = Round([[] for _ in range(ROWS)], [None] * ROWS)
        for row in range(ROWS):
            span = range(5 + 4 * row)
            prompt = tuple((11 * row + 7 * n * n + 3) % (self._vocabulary - 2) + 2 for n in span)
            self.engine.submit(Request(f"{prefix}{row}", prompt, self._tokens, ignore_eos=True))
        heated = False
        while self.engine.has_work:
            decoding = all(len(answer) >= 3 for answer in round_.answers)
            self.hot = decoding and not heated
            if self.hot:
                heated = True
                before_hot_step()
            began_ns = time.monotonic_ns()
            events = self.engine.step()
            ended_ns = time.monotonic_ns()
            self.hot = False
            round_.steps += 1
            if decoding and round_.alarm_ns < 0:
                round_.step_ns.append(ended_ns - began_ns)
            for event in events:
                if isinstance(event, TokenEvent | FinishEvent):
                    self._note(round_, event, int(event.request_id.removeprefix(prefix)), ended_ns)
        self._round = None
        for backend in self.breaker.chain:
            if self.breaker.state(backend) is not BreakerState.CLOSED:
                self.breaker.succeeded(backend)  # a round of its own
        return round_

    @staticmethod
    def _note(round_: Round, event: TokenEvent | FinishEvent, row: int, now_ns: int) -> None:
        if isinstance(event, TokenEvent):
            round_.answers[row].append(event.token)
        else:
            round_.finishes[row] = event.finish
        if row == VICTIM and round_.alarm_ns >= 0 and round_.over_ns < 0:
            round_.over_ns = now_ns


def median_ms(durations_ns: list[int]) -> float:
    """The middle of some durations, 0 of none."""
    return statistics.median(durations_ns) / 1e6 if durations_ns else 0.0
