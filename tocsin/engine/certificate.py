"""The invariance certificate: whether a request has the same bits in any company, on this machine.

Each case runs the same requests in other circumstances and compares the logits behind every token
with those of a quiet run in which each request was alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from tocsin.core.errors import TocsinError
from tocsin.core.protocols import StepAttempt
from tocsin.core.requests import FinishEvent, Request, TokenEvent
from tocsin.core.verdict import Settlement
from tocsin.engine.config import EngineConfig
from tocsin.engine.engine import ReferenceEngine
from tocsin.engine.gate import OpenGate
from tocsin.engine.step import Attempt

LogitsByToken = dict[tuple[str, int], Tensor]
"""(request, index of the token in its answer) → logits [V] that it was chosen from."""


@dataclass(slots=True)
class _Recorder(OpenGate):
    """An open gate that keeps the logits of every token, replayed ones too."""

    logits: LogitsByToken = field(default_factory=dict)

    def settle(self, attempt: StepAttempt, error: Exception | None) -> Settlement:
        """Keep a copy of each sampled row."""
        if isinstance(attempt, Attempt) and attempt.logits is not None:
            for row, sequence in enumerate(attempt.plan.rows):
                if sequence is not None and attempt.choice(row) is not None:
                    index = attempt.plan.positions[row].stop - len(sequence.request.prompt_ids)
                    self.logits[sequence.request_id, index] = attempt.logits[row].clone()
        return OpenGate.settle(self, attempt, error)


def certify(
    model: nn.Module,
    config: EngineConfig | None = None,
    *,
    prompts: Sequence[tuple[int, ...]] | None = None,
    max_new_tokens: int = 4,
) -> dict[str, Any]:
    """Take the certificate.

    Args:
        model: a quiet model: no checks, no faults; its attention becomes `tocsin_paged`.
        config: of the engine that is judged.
        prompts: token ids; None: three made-up prompts, two of which share a prefix.

    Returns:
        JSON-safe: `bit_exact` (all cases on the first backend), `tau` (twice the largest logit
        difference of any case, other backends included: the margin below which a divergence may
        be a tie), `cases`, and what the bits depend on.
    """
    config = config or EngineConfig()
    asked = list(prompts or _made_up_prompts(model, config))
    requests = [
        Request(f"certificate-{number}", prompt, max_new_tokens, ignore_eos=True)
        for number, prompt in enumerate(asked)
    ]
    alone: LogitsByToken = {}
    for request in requests:
        alone.update(_run(model, config, [request])[0])
    tokens = {
        request.request_id: tuple(
            int(alone[request.request_id, index].argmax()) for index in range(max_new_tokens)
        )
        for request in requests
    }
    cases = [_case(name, alone, logits) for name, logits in _variants(model, config, requests)]
    resumed = [
        replace(request, delivered=tokens[request.request_id][: max_new_tokens // 2])
        for request in requests
    ]
    cases.append(_case("resumed with delivered tokens", alone, _run(model, config, resumed)[0]))
    others = [
        _case(f"backend {name}", alone, _run(model, replace(config, backends=(name,)), requests)[0])
        for name in config.backends[1:]
    ]
    largest = max(case["dlogit_max"] for case in (*cases, *others))
    return {
        "bit_exact": all(case["exact"] for case in cases),
        "tau": 2 * largest,
        "cases": cases,
        "other_backends": others,
        "slots": config.slots,
        "page_size": config.page_size,
        "prefill_chunk": config.prefill_chunk,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
    }


def _variants(
    model: nn.Module, config: EngineConfig, requests: list[Request]
) -> list[tuple[str, LogitsByToken]]:
    """The circumstances that must not change a bit."""
    together, _ = _run(model, config, requests)
    reversed_order, _ = _run(model, config, requests[::-1])
    # Twice in one engine: the second time the prompts' pages come from the prefix index.
    again = [replace(one, request_id=f"{one.request_id}-again") for one in requests]
    hits, engine = _run(model, config, requests, again)
    second = {
        (request_id.removesuffix("-again"), index): logits
        for (request_id, index), logits in hits.items()
        if request_id.endswith("-again")
    }
    name = f"prefix index ({engine.stats().prefix_hits} pages)"
    uncached = replace(config, prefix_cache=False)
    pressed, engine = _run(model, uncached, requests, preempt_at=requests[0].max_new_tokens // 2)
    preempted = f"preempted, replayed ({engine.stats().preemptions} times)"
    return [
        ("with neighbours", together),
        ("in other slots", reversed_order),
        (name, second),
        (preempted, pressed),
    ]


def _run(
    model: nn.Module, config: EngineConfig, *waves: Sequence[Request], preempt_at: int = -1
) -> tuple[LogitsByToken, ReferenceEngine]:
    """All requests of a wave at once, the next wave when the engine is empty.

    Args:
        preempt_at: each request is preempted once, after its token of this index; -1: never.
    """
    engine = ReferenceEngine(model, config=config)
    recorder = _Recorder(engine.choice)
    engine.gate = recorder
    for wave in waves:
        for request in wave:
            engine.submit(request)
        while engine.has_work:
            for event in engine.step():
                if isinstance(event, TokenEvent) and event.index == preempt_at:
                    engine.preempt(event.request_id)
                if isinstance(event, FinishEvent) and not event.finish.complete:
                    raise TocsinError(
                        f"certificate: {event.request_id} ended with {event.finish}: "
                        f"{event.message}; a quiet engine must answer every request"
                    )
    return recorder.logits, engine


def _case(name: str, alone: LogitsByToken, logits: LogitsByToken) -> dict[str, Any]:
    """Compare with the quiet run; a run that ended well has a row for every token."""
    differences = [float((alone[key] - logits[key]).abs().max()) for key in alone]
    return {
        "name": name,
        "tokens": len(differences),
        "exact": all(torch.equal(alone[key], logits[key]) for key in alone),
        "dlogit_max": max(differences),
    }


def _made_up_prompts(model: nn.Module, config: EngineConfig) -> list[tuple[int, ...]]:
    """Three prompts: less than a page, a chunk and a bit, and the same start with another end."""
    facts: Any = model.config
    room = config.max_model_len // 2
    ids = [(7 * number + 11) % int(facts.vocab_size) for number in range(room)]
    long = min(room, config.prefill_chunk + config.page_size // 2 + 1)
    short = max(1, config.page_size // 2)
    other_end = (*ids[: max(1, long - 3)], *ids[-2:])
    return [tuple(ids[:short]), tuple(ids[:long]), tuple(other_end)]
