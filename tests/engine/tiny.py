"""A tiny random Llama and short ways to drive an engine over it."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from tocsin.core.history import Event
from tocsin.core.protocols import StepAttempt
from tocsin.core.requests import EngineEvent, FinishEvent, Request, TokenEvent
from tocsin.core.terms import Operator, Phase
from tocsin.core.verdict import Settlement
from tocsin.engine.config import EngineConfig
from tocsin.engine.engine import ReferenceEngine
from tocsin.engine.gate import OpenGate
from tocsin.engine.step import Attempt

VOCAB = 96
CONFIG = EngineConfig(slots=4, page_size=8, pages=24, max_model_len=64, prefill_chunk=16)


def tiny_model(**changes: Any) -> nn.Module:
    """Two layers, hidden size 64, fp32; the same weights on every call."""
    torch.manual_seed(7)
    facts: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "initializer_range": 0.2,
        "eos_token_id": None,  # generate must not stop where the engine was not told to
    }
    return LlamaForCausalLM(LlamaConfig(**{**facts, **changes})).eval()


def prompt(length: int, start: int = 3) -> tuple[int, ...]:
    """Token ids without short repetitions; another start, another prompt."""
    return tuple((start + 7 * n * n + 5 * n) % VOCAB for n in range(length))


def request(name: str, length: int = 5, new: int = 8, start: int = 3, **facts: Any) -> Request:
    """A greedy request with a made-up prompt."""
    return Request(name, prompt(length, start), new, **facts)


@dataclass(slots=True)
class Recorder(OpenGate):
    """An open gate that keeps the logits behind every token, replayed ones too."""

    logits: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    kinds: list[str] = field(default_factory=list)

    def settle(self, attempt: StepAttempt, error: Exception | None) -> Settlement:
        """Copy the row of each token."""
        assert isinstance(attempt, Attempt)
        self.kinds.append(attempt.kind)
        for row, sequence in enumerate(attempt.plan.rows):
            if sequence and attempt.choice(row) and attempt.logits is not None:
                index = attempt.plan.positions[row].stop - len(sequence.request.prompt_ids)
                self.logits[sequence.request_id, index] = attempt.logits[row].clone()
        return OpenGate.settle(self, attempt, error)


@dataclass(slots=True)
class Notes:
    """A sink that keeps what it is told."""

    events: list[Event] = field(default_factory=list)

    def emit(self, event: Event) -> None:
        self.events.append(event)

    def kinds(self) -> list[str]:
        return [str(event.kind) for event in self.events]


def listened(model: nn.Module, config: EngineConfig = CONFIG) -> ReferenceEngine:
    """An engine whose sums somebody wants: it keeps them, as under any profile but `off`."""
    engine = ReferenceEngine(model, config=config)
    engine.seams.add_check(Operator.KV_READ, Phase.BEFORE, lambda call: None)
    return engine


def recorded(engine: ReferenceEngine) -> Recorder:
    """Put a recorder in the place of the engine's gate."""
    recorder = Recorder(engine.choice)
    engine.gate = recorder
    return recorder


def drain(engine: ReferenceEngine, steps_max: int = 2000) -> list[EngineEvent]:
    """Step until nothing is left to do."""
    events: list[EngineEvent] = []
    for _ in range(steps_max):
        if not engine.has_work:
            return events
        events += engine.step()
    raise AssertionError(f"the engine still has work after {steps_max} steps")


def answers(events: Sequence[EngineEvent]) -> dict[str, list[int]]:
    """Tokens by request, in order; each index must follow the one before."""
    found: dict[str, list[TokenEvent]] = {}
    for event in events:
        if isinstance(event, TokenEvent):
            found.setdefault(event.request_id, []).append(event)
    for tokens in found.values():
        assert all(b.index == a.index + 1 for a, b in itertools.pairwise(tokens))
    return {name: [event.token for event in tokens] for name, tokens in found.items()}


def endings(events: Sequence[EngineEvent]) -> dict[str, FinishEvent]:
    """The ending of each request; a second one is an error."""
    found: dict[str, FinishEvent] = {}
    for event in events:
        if isinstance(event, FinishEvent):
            assert event.request_id not in found
            found[event.request_id] = event
    return found


def alone(model: nn.Module, asked: Request, config: EngineConfig = CONFIG) -> list[int]:
    """The answer of a quiet engine that serves nobody else."""
    engine = ReferenceEngine(model, config=config)
    engine.submit(asked)
    return answers(drain(engine)).get(asked.request_id, [])
