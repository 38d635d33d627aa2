"""Which operator goes wrong first: a suspect run beside a clean one in float32, call by call.

Each operator is judged by itself: what it returned is compared with what the clean weights, tables
and masks make of the inputs that it was given, computed in float64. So an error is named where it
arises, and not where it has grown large, and rounding does not add up over the layers.

Axes: see tocsin/core/calls.py.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from tocsin.chaos.lease import Armoury
from tocsin.checker.attach.transformers import TransformersAdapter
from tocsin.checker.reproduction.judgement import Judge, Judged
from tocsin.core.calls import AttentionCall, BatchCall, Call, VarlenAttentionCall
from tocsin.core.clock import SystemClock
from tocsin.core.faulting import Order
from tocsin.core.requests import Request, TokenEvent
from tocsin.core.seams import Seams
from tocsin.core.terms import Operator, Phase
from tocsin.engine.config import EngineConfig
from tocsin.engine.engine import ReferenceEngine

_HEARD = (
    (Operator.BATCH, Phase.BEFORE),
    (Operator.FLASH_ATTN_VARLEN, Phase.BEFORE),
    *(
        (operator, Phase.AFTER)
        for operator in (
            Operator.EMBEDDING,
            Operator.RMS_NORM,
            Operator.LINEAR,
            Operator.ROPE,
            Operator.ATTENTION,
            Operator.SWIGLU,
            Operator.RESIDUAL,
            Operator.LOGITS,
        )
    ),
)
_TRUSTED = frozenset({"block_sums", "block_norms", "bias_sums", "weight_trusted", "inv_freq"})
"""What checks compare with; here the clean run gives it."""
_LEASE_S = 3600.0
_STEPS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Line:
    """One operator call of both runs.

    Attributes:
        step: of the engine, from 1; position: of the token that is fed in (the chunk's last).
        ratio: worst deviation from what the clean operator makes of the same inputs, over its
            limit; above 1, or NaN, it diverges.
        drift: largest distance from the clean run's own result, relative to its largest number.
        place: where in the result the worst deviation is, in words.
    """

    step: int
    position: int
    operator: str
    module: str
    depth: int | None
    ratio: float
    drift: float
    place: str = ""

    @property
    def diverges(self) -> bool:
        """Beyond rounding."""
        return not self.ratio <= 1.0


@dataclass(slots=True)
class Comparison:
    """What came of comparing two runs.

    Attributes:
        first: the first operator that diverges, None where none does.
        lines: all calls of the step of `first`, or of the last step.
        calls: operator calls compared; steps: engine steps.
        ties: positions at which the runs chose another token although no operator diverged.
        evidence: what the chaos order changed; empty without one.
    """

    first: Line | None = None
    lines: list[Line] = field(default_factory=list)
    calls: int = 0
    steps: int = 0
    ties: list[int] = field(default_factory=list)
    evidence: str = ""


class Side:
    """One engine without checks, and the calls of its last step.

    Args:
        model: a model of its own: faults change it.
    """

    def __init__(self, model: nn.Module, config: EngineConfig) -> None:
        """Listen at every operator."""
        self.seams = Seams()
        self.engine = ReferenceEngine(model, None, config, seams=self.seams)
        self.adapter = TransformersAdapter(model, self.seams)
        self.armoury = Armoury(
            model, self.engine.pages, self.seams, SystemClock(), lambda status: None
        )
        self.heard: list[Call] = []
        self.tokens: list[int] = []
        self._remove: list[Callable[[], None]] = [
            self.seams.add_check(operator, phase, self._hear) for operator, phase in _HEARD
        ]

    def close(self) -> None:
        """Leave the model as it was."""
        self.armoury.disarm_all()
        for remove in self._remove:
            remove()
        self.adapter.detach()

    def submit(self, request: Request) -> None:
        """Take a request in; its tokens are forgotten, except those delivered before."""
        self.engine.submit(request)
        self.tokens = list(request.delivered)

    def step(self) -> None:
        """One step; its calls are in `heard`."""
        self.heard = []
        self.armoury.tick(self.engine.stats().step)
        for event in self.engine.step():
            if isinstance(event, TokenEvent):
                self.tokens.append(event.token)

    def _hear(self, call: Call) -> None:
        """Keep what may be overwritten; parameters are looked at in place."""
        kept: dict[str, Any] = {}
        for name in type(call).__dataclass_fields__:
            value = getattr(call, name)
            if name in _TRUSTED:
                kept[name] = None
            elif isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
                kept[name] = value.detach().clone()
        self.heard.append(replace(call, **kept))


def compare(
    suspect: nn.Module,
    golden: nn.Module,
    request: Request,
    config: EngineConfig,
    *,
    order: Mapping[str, Any] | None = None,
    after_tokens: int = 2,
) -> Comparison:
    """Run a request on both models, step by step, until an operator diverges or it has ended.

    Args:
        suspect: weights under suspicion, in their own dtype.
        golden: clean weights, float32.
        config: of the engines; one slot is enough.
        order: chaos order that the suspect suffers: kind, seed, params.
        after_tokens: tokens that the suspect releases before the order is given.
    """
    found, judge = Comparison(), Judge()
    mine, clean = Side(suspect, config), Side(golden, config)
    try:
        mine.submit(request)
        clean.submit(request)
        armed = order is None
        cached: dict[int | None, AttentionCall] = {}
        while mine.engine.has_work and found.steps < _STEPS_MAX and found.first is None:
            if not armed and order is not None and len(mine.tokens) >= after_tokens:
                armed = True
                _arm(mine, order)
            mine.step()
            clean.step()
            found.steps += 1
            if mine.heard:
                _compare_step(found, mine, clean, judge, cached)
            if found.first is None and mine.engine.has_work and mine.tokens != clean.tokens:
                found.ties.append(len(mine.tokens) - 1)
                _follow(clean, request, mine.tokens, len(found.ties))
        found.evidence = "; ".join(
            f"{one.evidence.place}: {one.evidence.before} -> {one.evidence.after}"
            for one in mine.armoury.statuses()
            if one.evidence is not None and one.evidence.fired
        )
    finally:
        mine.close()
        clean.close()
    return found


def _arm(side: Side, order: Mapping[str, Any]) -> None:
    step = side.engine.stats().step
    side.armoury.arm(
        Order(
            "bisect@0",
            str(order["kind"]),
            int(order.get("seed") or 0),
            step,
            _LEASE_S,
            dict(order.get("params") or {}),
        )
    )


def _follow(clean: Side, request: Request, tokens: Sequence[int], number: int) -> None:
    """A near tie went the other way: the clean run goes on with the suspect's tokens."""
    for name in clean.engine.pages.running():
        clean.engine.cancel(name)
    while clean.engine.has_work:
        clean.step()
    name = f"{request.request_id}+{number}"
    clean.submit(replace(request, request_id=name, delivered=tuple(tokens)))
    last = len(request.prompt_ids) + len(tokens) - 2  # fed in when the newest token was made
    while clean.engine.has_work:
        clean.step()
        if _position(clean.heard) >= last:
            return


def _compare_step(
    found: Comparison,
    mine: Side,
    clean: Side,
    judge: Judge,
    cached: dict[int | None, AttentionCall],
) -> None:
    """Compare the calls of one step in the order in which they were made."""
    position = _position(mine.heard)
    lines: list[Line] = []
    for call, other in zip(mine.heard, clean.heard, strict=False):
        if (call.operator, call.module, call.depth) != (other.operator, other.module, other.depth):
            break
        for verdict in _verdicts(call, other, judge, cached):
            lines.append(
                Line(
                    step=found.steps,
                    position=position,
                    operator=verdict.operator or str(call.operator),
                    module=call.module or str(call.operator),
                    depth=call.depth,
                    ratio=verdict.ratio,
                    drift=verdict.drift,
                    place=verdict.place,
                )
            )
        if isinstance(call, AttentionCall):
            cached[call.depth] = call
    found.calls += len(lines)
    found.lines = lines
    found.first = next((line for line in lines if line.diverges), None)


def _verdicts(
    call: Call, other: Call, judge: Judge, cached: Mapping[int | None, AttentionCall]
) -> list[Judged]:
    """What is said of one call; attention is also asked for what the cache gave it."""
    found = []
    before = cached.get(call.depth)
    if isinstance(call, AttentionCall) and before is not None:
        found.append(_cache(call, before))
    return [*found, judge.judged(call, other)]


def _cache(call: AttentionCall, before: AttentionCall) -> Judged:
    """Keys and values of earlier positions are, bit for bit, those of the step before."""
    if before.mask is None or call.mask is None:
        return Judged(0.0, 0.0, operator="kv_cache")
    seen = before.mask.to(torch.bool) if before.mask.dtype is torch.bool else before.mask == 0
    length = int(seen[0].any(dim=-2).reshape(-1).sum())
    length = min(length, call.k.shape[2], before.k.shape[2])
    for name in ("k", "v"):
        now = getattr(call, name)[:1, :, :length]
        then = getattr(before, name)[:1, :, :length]
        same = (now == then) | (now.isnan() & then.isnan())
        if not bool(same.all()):
            at = [int(one) for one in (~same).nonzero()[0]]
            place = f"cached {name} of position {at[2]}, head {at[1]}, element {at[3]}"
            return Judged(float("inf"), 0.0, place, operator="kv_cache")
    return Judged(0.0, 0.0, operator="kv_cache")


def _position(heard: Sequence[Call]) -> int:
    """Position of the last token that a step feeds in."""
    for call in heard:
        if isinstance(call, BatchCall):
            return int(call.position_ids_expected.reshape(-1)[-1])
        if isinstance(call, VarlenAttentionCall) and call.cu_seqlens_k.numel() > 1:
            return int(call.cu_seqlens_k.diff().max()) - 1
    return -1
