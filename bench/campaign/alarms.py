"""Clean runs: how many ratios were compared with their limits, and how many alarmed."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache

from tocsin.bench.campaign.subject import Subject
from tocsin.core.terms import Layer

PATHS = ("eager", "sdpa")
"""Attention implementations of Transformers that clean runs go through."""


def alarm_trials(model: nn.Module, prompts_RP: Tensor, path: str, steps: int) -> dict[str, Any]:
    """Prefill and decode greedily with all checks.

    Args:
        prompts_RP: one row a request; steps: decode steps.

    Returns:
        evaluations: ratios compared with their limits, one a check, call and row for numerical
        checks and one a check and call for the others; calls: checks run; alarms; tokens; and the
        first few messages.
    """
    facts: Any = model
    facts.set_attn_implementation(path)
    subject = Subject(model)
    found: dict[str, Any] = {"evaluations": 0, "calls": 0, "alarms": 0, "tokens": 0, "messages": []}
    try:
        cache, ids = DynamicCache(), prompts_RP
        before = dict(subject.guard.counters.checks)
        for _ in range(steps + 1):
            logits, verdict = subject.forward(ids, cache)
            ids = logits.argmax(-1, keepdim=True)
            found["calls"] += verdict.checks_run
            found["alarms"] += len(verdict.findings)
            found["tokens"] += ids.shape[0]
            messages = [*found["messages"], *(finding.message for finding in verdict.findings)]
            found["messages"] = messages[:8]
        after = subject.guard.counters.checks
        for (operator, layer, result), count in after.items():
            rows = prompts_RP.shape[0] if layer == Layer.NUMERICAL else 1
            found["evaluations"] += rows * (count - before.get((operator, layer, result), 0))
    finally:
        subject.close()
    return found


def prompts_of(pool: Sequence[Sequence[int]], rows: int, length: int, number: int) -> Tensor:
    """`rows` prompts of one length; another number gives another cut of the pool."""
    chosen = [pool[(number * rows + row) % len(pool)] for row in range(rows)]
    shift = number % (min(map(len, chosen)) - length + 1)
    return torch.tensor([list(ids[shift : shift + length]) for ids in chosen])
