"""The step of a Transformers model that all variants run: fixed shapes, a static cache, a token."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import tocsin
from tocsin.bench.competitors.competitor import Attached
from tocsin.bench.overhead.plan import Case
from tocsin.core.errors import CheckFailed, ContractError

Forward = Callable[..., Any]

Step = Callable[[], list[int]]
"""One step; returns the token of each row."""


@dataclass(frozen=True, slots=True)
class Work:
    """Inputs and the cache of one case; every variant writes the same positions of it again.

    Attributes:
        ids_RT: int64, the tokens of the step.
        prompt_RT: int64, what fills the cache before a decode step; calibration uses it, too.
        cache: a `transformers.StaticCache` of exactly the case's positions.
    """

    ids_RT: Tensor
    prompt_RT: Tensor
    cache: Any

    def prepare(self) -> None:
        """Set the cache back to the length before the step."""
        length = self.cache.get_max_length() - self.ids_RT.shape[1]
        for layer in self.cache.layers:
            layer.cumulative_length.fill_(length)

    def forward(self, forward: Forward) -> Tensor:
        """One forward pass: the last position's logits [R, 1, V]."""
        found = forward(input_ids=self.ids_RT, cache=self.cache, logits_to_keep=1)
        logits: Tensor = found.logits
        return logits


def work_for(model: nn.Module, case: Case, tokens: Tensor) -> Work:
    """Inputs and a filled cache.

    One row is computed and stands in all of them: rows cost the same whatever they hold, and
    filling 32 of them by computing would take longer than the whole case.

    Args:
        model: bare, with as many layers as the case has.
        case: what to prepare for.
        tokens: int64 [positions or more], tokens of a text.
    """
    from transformers import StaticCache

    positions, rows = case.positions, case.batch
    prompt_1T = tokens[None, :positions]
    facts: Any = model.config
    cache: Any = StaticCache(config=facts, max_cache_len=positions)
    one: Any = StaticCache(config=facts, max_cache_len=positions)
    with torch.no_grad():
        model(input_ids=prompt_1T, cache=one, logits_to_keep=1)
    for layer, source in zip(cache.layers, one.layers, strict=True):
        layer.lazy_initialization(
            source.keys.expand(rows, -1, -1, -1), source.values.expand(rows, -1, -1, -1)
        )
        layer.keys.copy_(source.keys.expand_as(layer.keys))
        layer.values.copy_(source.values.expand_as(layer.values))
    ids_RT = prompt_1T[:, -case.tokens :].expand(rows, -1).contiguous()
    return Work(ids_RT, prompt_1T, cache)


def bare_step(work: Work, forward: Forward) -> Step:
    """Forward pass and greedy token, as any server does."""

    def run() -> list[int]:
        return _chosen(work.forward(forward)).tolist()

    return run


def guarded_step(work: Work, forward: Forward, guard: "tocsin.Guard") -> Step:
    """The same under `tocsin`'s checks; the verdict is read before the token would leave."""

    def run() -> list[int]:
        with guard.step() as step:
            tokens_R = _chosen(work.forward(forward))
        verdict = step.verdict
        if not verdict.ok:
            raise CheckFailed(verdict.findings)
        return tokens_R.tolist()

    return run


def watched_step(work: Work, forward: Forward, attached: Attached) -> Step:
    """The same under a competitor; its flags are read before the token would leave."""

    def run() -> list[int]:
        attached.begin()
        tokens_R = _chosen(work.forward(forward))
        if bool(attached.flagged().any()):
            raise ContractError(
                "bench: a competitor flagged a clean step, expected none; "
                "its cost would be that of a false alarm"
            )
        return tokens_R.tolist()

    return run


def _chosen(logits_R1V: Tensor) -> Tensor:
    return logits_R1V[:, -1].argmax(dim=-1)


def checks_of_a_step(work: Work, forward: Forward, guard: "tocsin.Guard") -> int:
    """Check evaluations behind one verdict; with none there is nothing to measure."""
    work.prepare()
    with guard.step() as step:
        work.forward(forward)
    return step.verdict.checks_run
