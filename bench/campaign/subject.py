"""The model under test: prompts of one length, a golden run, and steps at the golden shape.

Axes: R rows · P prompt tokens · T golden tokens · V vocabulary · K key/value heads · E head size.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache, DynamicLayer

from tocsin.bench.campaign import attention
from tocsin.bench.campaign.injector import Injector
from tocsin.bench.campaign.sites import Fault
from tocsin.checker.guard import Guard, attach
from tocsin.core.errors import ContractError
from tocsin.core.terms import Profile
from tocsin.core.verdict import Verdict
from tocsin.engine.engine import cache_keyword

STEP_ERRORS = (RuntimeError, IndexError, ValueError)
"""What a fault in its tensors can make a model raise."""


class Fp32Head(nn.Linear):
    """An output head that computes and answers in float32, whatever the model's dtype."""

    @classmethod
    def of(cls, head: nn.Linear) -> "Fp32Head":
        """A head with the same numbers."""
        made = cls(head.in_features, head.out_features, bias=head.bias is not None)
        with torch.no_grad():
            made.weight.copy_(head.weight.float())
            if head.bias is not None:
                made.bias.copy_(head.bias.float())
        made.requires_grad_(requires_grad=False)
        made.register_forward_pre_hook(lambda module, args: (args[0].float(), *args[1:]))
        return made


def prepared(model: nn.Module) -> nn.Module:
    """The model on the campaign's attention, in evaluation mode, with a float32 head."""
    attention.register()
    facts: Any = model
    facts.set_attn_implementation(attention.IMPLEMENTATION)
    head = facts.get_output_embeddings()
    if not isinstance(head, Fp32Head):
        facts.lm_head = Fp32Head.of(head)
    return model.eval()


class Subject:
    """One prepared model with faults at its seams and the checks of one profile.

    Attributes:
        guard: with profile `off` the model runs unchecked.
        injector: made before any other detector hooks the model.
    """

    def __init__(self, model: nn.Module, profile: Profile | str = Profile.FULL) -> None:
        """Attach."""
        self.model = model
        self._keyword = cache_keyword(model)  # before anybody takes the place of its forward
        self.guard: Guard = attach(model, profile)
        self.injector = Injector(model, self.guard.seams)

    @property
    def dtype(self) -> torch.dtype:
        """The model's."""
        return next(self.model.parameters()).dtype

    def set_profile(self, profile: Profile) -> None:
        """From the next step on."""
        self.guard.switchboard.set_profile(profile, "campaign")

    def close(self) -> None:
        """Restore the model."""
        self.injector.close()
        self.guard.detach()

    def forward(self, ids_RS: Tensor, cache: DynamicCache) -> tuple[Tensor, Verdict]:
        """One step under checks: logits [R,V] float32 of the last position, and the verdict."""
        start = cache.get_seq_length()
        positions = torch.arange(start, start + ids_RS.shape[1]).expand(ids_RS.shape[0], -1)
        with self.guard.step() as step:
            output = self.model(
                input_ids=ids_RS,
                position_ids=positions,
                use_cache=True,
                logits_to_keep=1,
                **{self._keyword: cache},
            )
        logits: Tensor = output.logits[:, -1].float()
        return logits, step.verdict


@dataclass(frozen=True, slots=True)
class World:
    """A golden run: what every step of it was fed, and what it gave.

    Attributes:
        ids: [R,P+T] prompt and golden tokens.
        prompt: P; chunk: tokens of the last prefill step, which is golden step 0.
        logits: [T+1,R,V], of step 0 and of each decode step after it.
        layers: keys and values [R,K,P+T,E] of each depth.
    """

    ids: Tensor
    prompt: int
    chunk: int
    logits: Tensor
    layers: tuple[tuple[Tensor, Tensor], ...]

    @property
    def rows(self) -> int:
        """R."""
        return self.ids.shape[0]

    @property
    def steps(self) -> int:
        """Golden steps, the prefill chunk included."""
        return self.logits.shape[0]

    def span(self, step: int) -> tuple[int, int]:
        """First position and number of positions of a golden step."""
        return (self.prompt - self.chunk, self.chunk) if step == 0 else (self.prompt + step - 1, 1)

    def cached(self, step: int) -> list[tuple[Tensor, Tensor]]:
        """Keys and values that a golden step finds, views of the golden ones."""
        length = self.span(step)[0]
        return [(k[:, :, :length], v[:, :, :length]) for k, v in self.layers]


def golden_world(subject: Subject, prompts_RP: Tensor, chunk: int, tokens: int) -> World:
    """Run clean and keep everything; then prove that a replay gives the same bits.

    Args:
        prompts_RP: prompts of one length; chunk: prefilled last; tokens: T golden ones.

    Raises:
        ContractError: a clean run alarmed, or a step that is run again has other bits.
    """
    prompt = prompts_RP.shape[1]
    subject.injector.arm(())
    cache, ids = DynamicCache(), prompts_RP
    if prompt > chunk:
        _clean(subject.forward(ids[:, : prompt - chunk], cache))
    kept: list[Tensor] = []
    step_ids = ids[:, prompt - chunk :]
    for _ in range(tokens + 1):
        logits = _clean(subject.forward(step_ids, cache))
        kept.append(logits)
        step_ids = logits.argmax(-1, keepdim=True)
        ids = torch.cat((ids, step_ids), dim=1)
    held: list[Any] = cache.layers
    layers = tuple((layer.keys, layer.values) for layer in held)
    world = World(ids[:, :-1], prompt, chunk, torch.stack(kept), layers)
    for start in (0, 1):
        for offset, (logits, _) in enumerate(replay(subject, world, start, 2, ())):
            if not torch.equal(logits, world.logits[start + offset]):
                raise ContractError(
                    f"campaign: golden step {start + offset} run again has other bits, expected "
                    "the same; run on a fixed number of threads and on one kernel"
                )
    return world


def replay(
    subject: Subject, world: World, start: int, steps: int, faults: Sequence[Fault]
) -> Iterator[tuple[Tensor, Verdict]]:
    """Golden step `start` with faults, and the steps after it, fed the golden tokens.

    Yields:
        logits [R,V] and verdict of each step; what the model raises is raised.
    """
    injector = subject.injector
    injector.arm(faults)
    layers = world.cached(start)
    injector.in_cache(faults, layers)
    cache = cache_of(layers)
    for step in range(start, start + steps):
        first, width = world.span(step)
        yield subject.forward(world.ids[:, first : first + width], cache)
        injector.rest()


def cache_of(layers: Sequence[tuple[Tensor, Tensor]]) -> DynamicCache:
    """A cache that continues after the given keys and values, without copying them."""
    cache = DynamicCache()
    for keys, values in layers:
        layer = DynamicLayer()  # type: ignore[no-untyped-call]
        if keys.shape[2]:
            layer.lazy_initialization(keys, values)
            layer.keys, layer.values = keys, values
        cache.layers.append(layer)
    return cache


def _clean(result: tuple[Tensor, Verdict]) -> Tensor:
    logits, verdict = result
    if not verdict.ok:
        raise ContractError(
            f"campaign: a clean run alarmed: {verdict.findings[0].message}; "
            "expected silence, the golden run must be one"
        )
    return logits
