"""An engine that serves the campaign's prompts, and the gates through which trials look in."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from tocsin.checker.breaker import Breaker
from tocsin.checker.gate import GuardGate
from tocsin.checker.guard import Guard, attach
from tocsin.checker.settings import CheckerSettings
from tocsin.checker.weights import WeightStore
from tocsin.core.protocols import StepAttempt
from tocsin.core.requests import Request
from tocsin.core.terms import Action, Profile
from tocsin.core.verdict import Failure, Settlement, Verdict
from tocsin.engine.config import EngineConfig
from tocsin.engine.engine import ReferenceEngine
from tocsin.engine.gate import FixedChoice, OpenGate
from tocsin.engine.step import Attempt

PREFILL_CHUNK = 32


def engine_of(
    model: nn.Module, slots: int, tokens_max: int, *, shared: int = 0
) -> tuple[ReferenceEngine, Guard]:
    """An engine with checks at profile `full` on its seams; its gate is the caller's.

    Args:
        tokens_max: of prompt and answer.
        shared: requests beyond the slots whose pages must find room too.
    """
    size = 16
    length = -(-tokens_max // size) * size
    pages = (slots + shared + 2) * (length // size)
    config = EngineConfig(
        slots=slots,
        page_size=size,
        pages=pages,
        max_model_len=length,
        prefill_chunk=PREFILL_CHUNK,
    )
    engine = ReferenceEngine(model, config=config, choice=FixedChoice(config.backends))
    return engine, attach(model, Profile.FULL, seams=engine.seams)


def submit(engine: ReferenceEngine, prompts: Sequence[Sequence[int]], tokens: int) -> None:
    """One request a prompt, `r0`, `r1`, …, all of one answer length."""
    for number, prompt in enumerate(prompts):
        engine.submit(Request(f"r{number}", tuple(prompt), tokens, ignore_eos=True))


@dataclass(slots=True)
class ProbeGate:
    """Shows the inputs of a step to the host-side checks, again and again, before its launch.

    The step itself then runs as it would have; its checks are not read.

    Attributes:
        probe: called once a step with the attempt; it calls `look`.
    """

    guard: Guard
    probe: Callable[["ProbeGate", Attempt], None]
    _probing: bool = False

    def open(self, attempt: StepAttempt) -> None:
        """A step begins: let the trials look at it."""
        if isinstance(attempt, Attempt):
            self.guard.runtime.begin(attempt.step)
            self.probe(self, attempt)
            self.guard.runtime.end()

    def may_launch(self) -> bool:
        """Only the step itself is launched, never a look."""
        return not self._probing

    def settle(self, attempt: StepAttempt, error: Exception | None) -> Settlement:
        """Release all rows, or refuse all when the step raised."""
        action = Action.RELEASE if error is None else Action.REFUSE
        return Settlement(actions=(action,) * len(attempt.request_ids), verified=False)

    def look(self, attempt: Attempt) -> Verdict:
        """What the checks say of the step's inputs as they are now; nothing is launched."""
        self._probing = True
        try:
            self.guard.runtime.again()
            attempt.run()
            attempt.verify_reads()
            return self.guard.runtime.verdict()
        finally:
            self._probing = False


@dataclass(slots=True)
class StepRecord:
    """One settled step.

    Attributes:
        logits: [R,V] of the run that counted; None where nothing ran.
        runs: of the step, the first included.
        settle_s: from the verdict to the settlement.
    """

    step: int
    kind: str
    logits: Tensor | None
    failures: tuple[Failure, ...]
    runs: int
    settle_s: float


@dataclass(slots=True)
class RecordingGate:
    """Another gate, and a record of each step that it settled."""

    gate: GuardGate | OpenGate
    steps: list[StepRecord] = field(default_factory=list)

    def open(self, attempt: StepAttempt) -> None:
        """As the other gate does."""
        self.gate.open(attempt)

    def may_launch(self) -> bool:
        """As the other gate does."""
        return self.gate.may_launch()

    def settle(self, attempt: StepAttempt, error: Exception | None) -> Settlement:
        """As the other gate does; keep what the step gave."""
        settlement = self.gate.settle(attempt, error)
        logits = attempt.logits if isinstance(attempt, Attempt) else None
        runs = max((failure.runs for failure in settlement.failures), default=1)
        self.steps.append(
            StepRecord(
                attempt.step,
                attempt.kind,
                None if logits is None else logits.clone(),
                settlement.failures,
                runs,
                getattr(self.gate, "settle_s", 0.0),
            )
        )
        return settlement


def guard_gate(engine: ReferenceEngine, guard: Guard) -> GuardGate:
    """The gate of serving, with the whole ladder; low memory of this machine is no matter here."""
    choice: Any = Breaker(engine.config.backends, failures_max=1 << 30)
    with torch.no_grad():
        weights = WeightStore(engine.model)
    settings = CheckerSettings(degrade_free_bytes=0, essential_free_bytes=0, failures_max=1 << 30)
    return GuardGate(guard, choice, weights, pages=engine.pages, settings=settings)
