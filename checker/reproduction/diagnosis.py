"""Was the recorded result computed from the recorded inputs? A plain reference says, in words."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from tocsin.checker.reproduction.reference import healthy
from tocsin.checker.rounding import U32, smallest_step, unit_roundoff
from tocsin.checker.structure import problem
from tocsin.core.calls import AttentionCall, Call, RopeCall

_ULP = 32.0
"""Distance from the float64 reference that kernels are allowed, in roundoffs of the largest number
of the same row: accumulation orders differ, flipped bits that matter are further away."""

_FEW = 0.02
_WORDS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What the reference says of one recorded call.

    Attributes:
        verdict: `as computed`, `changed since`, `wrong before`, `a few numbers`,
            `wrong throughout`, `broken form`, `no weight` or `no reference`.
        words: the same in a sentence or two.
    """

    verdict: str
    words: str


def diagnose(call: Call) -> Diagnosis:
    """Compare what was recorded with what a plain reference makes of the recorded inputs."""
    form = problem(call)
    if form:
        return Diagnosis("broken form", f"The form of the call is what is wrong: {form}.")
    with torch.no_grad():
        found = healthy(call)
        wrong = {
            name: _wrong(getattr(call, name), ought, _slack(call, name))
            for name, ought in found.items()
        }
    if not found:
        return Diagnosis(
            "no reference",
            "Nothing in this record follows from the rest of it by arithmetic: the check reads a "
            "rule that the record breaks by itself.",
        )
    bad = {name: mask for name, mask in wrong.items() if bool(mask.any())}
    if not bad:
        names = ", ".join(found)
        return Diagnosis(
            "as computed",
            f"A plain PyTorch reference gives the recorded {names} within rounding: the operator "
            "computed what it was told to. What it was given is wrong (an input, a weight, a "
            "parameter or a mask).",
        )
    before = _wrong_before(call, found)
    if before:
        return Diagnosis("wrong before", before)
    kept = [name for name in bad if name in _TRUSTED]
    if kept and len(kept) == len(bad):
        return Diagnosis("changed since", _changed(call, bad))
    sentences = [_sentence(call, name, mask, found[name]) for name, mask in bad.items()]
    share = max(float(mask.to(torch.float32).mean()) for mask in bad.values())
    count = max(int(mask.sum()) for mask in bad.values())
    if count <= 2 or share <= _FEW:
        verdict, meaning = (
            "a few numbers",
            "A wrong kernel would be wrong throughout: this is transient corruption of a result, "
            "or of memory.",
        )
    else:
        verdict, meaning = (
            "wrong throughout",
            "That many wrong numbers point to the operator, its parameters or its inputs, not to "
            "a flipped bit of the result.",
        )
    return Diagnosis(verdict, " ".join((*sentences, meaning)))


_SQUARE_LOST = 1.8e19
"""The square of a larger number is no number in float32: what an operator makes of it says
nothing about the operator."""


def _wrong_before(call: Call, derived: Mapping[str, Tensor]) -> str:
    """Words for operands that were wrong already; empty when they are numbers of a usual size."""
    for name in type(call).__dataclass_fields__:
        value = getattr(call, name)
        if name in derived or name in ("mask", "weight") or not isinstance(value, Tensor):
            continue
        if not value.is_floating_point() or value.numel() == 0:
            continue
        largest = float(value.to(torch.float64).abs().nan_to_num(math.inf).amax())
        if largest > _SQUARE_LOST:
            size = f"numbers up to {largest:.3g}" if math.isfinite(largest) else "no numbers"
            return (
                f"The input {name} holds {size}: what went wrong did so before this operator. Look "
                "at the first finding of the failure, or run tocsin bisect."
            )
    return ""


_TRUSTED: Final = {
    "block_sums": "weight",
    "block_norms": "weight",
    "bias_sums": "bias",
    "weight_trusted": "weight",
    "weight_norm_max": "weight",
    "weight_row_sums": "weight",
    "cos": "rotary table",
    "sin": "rotary table",
    "sums": "memory",
    "owners": "page",
    "epochs": "page",
    "first_positions": "page",
    "lengths": "page",
    "input_ids": "batch",
    "position_ids": "batch",
}
"""Fields that are compared with what was kept while all was well, and what has changed there."""


def _changed(call: Call, bad: Mapping[str, Tensor]) -> str:
    """The operator did its work on something that is not what it was."""
    things = " and ".join(dict.fromkeys(_TRUSTED[name] for name in bad))
    counts = ", ".join(f"{int(mask.sum()):,} of {mask.numel():,} {n}" for n, mask in bad.items())
    return (
        f"The {things} of this call is not what it ought to be: {counts} do not agree with what "
        "was kept or follows from the rest. The operator computed what it was told to; what it "
        "was given has changed (a flipped bit in memory, a stale copy, another's data)."
    )


def _wrong(recorded: Tensor, ought: Tensor, slack: Tensor | float) -> Tensor:
    """True where the recorded number is not the reference's, rounding apart."""
    if not recorded.is_floating_point():
        return recorded != ought
    number = recorded.to(torch.float64)
    scale = ought.abs()
    if scale.ndim and scale.numel():
        scale = torch.maximum(scale, scale.nan_to_num(0.0, 0.0, 0.0).amax(dim=-1, keepdim=True))
    allowed = scale * (_ULP * unit_roundoff(recorded.dtype) + 64 * U32)
    near = (number - ought).abs() <= allowed + slack + smallest_step(recorded.dtype)
    same = (number == ought) | (number.isnan() & ought.isnan())
    return ~(near | same)


def _slack(call: Call, name: str) -> Tensor | float:
    """What intermediate results add, which are rounded before the last one."""
    if isinstance(call, RopeCall) and call.inv_freq is not None and name in ("cos", "sin"):
        angle = call.position_ids.to(torch.float64)[..., None] * call.inv_freq.to(torch.float64)
        wide = torch.cat((angle, angle), dim=-1).abs()  # angles are computed in float32
        return (1 + wide) * (8 * U32 * abs(call.table_scale))
    if isinstance(call, AttentionCall):
        groups = call.q.shape[1] // call.k.shape[1]
        scale = call.q.shape[-1] ** -0.5 if call.scale is None else abs(call.scale)
        longest_k = call.k.to(torch.float64).norm(dim=-1).nan_to_num(0.0).amax(dim=-1)
        reach = call.q.to(torch.float64).norm(dim=-1) * scale
        reach = reach * longest_k.repeat_interleave(groups, dim=1)[..., None]
        off: Tensor = (1 + reach) * (
            10 * unit_roundoff(call.q.dtype) + 32 * U32
        )  # of a score, rounded
        if name == "lse":
            return off
        values = call.v.to(torch.float64).abs().nan_to_num(0.0).amax(dim=(2, 3))
        spread: Tensor = off[..., None] * values.repeat_interleave(groups, dim=1)[..., None, None]
        return spread
    return 0.0


def _sentence(call: Call, name: str, mask: Tensor, ought: Tensor) -> str:
    recorded: Tensor = getattr(call, name)
    count, total = int(mask.sum()), mask.numel()
    distance = (recorded.to(torch.float64) - ought.to(torch.float64)).abs()
    distance = distance.nan_to_num(math.inf, math.inf).masked_fill(~mask, -1.0)
    at = int(distance.reshape(-1).argmax())
    index = [int(one) for one in torch.unravel_index(torch.tensor(at), mask.shape)]
    was, should = recorded.reshape(-1)[at], ought.reshape(-1)[at]
    place = f"{name}{index}" if index else name
    found = f"{place} was recorded as {_number(was)}, the reference gives {_number(should)}"
    bit = _flipped_bit(was, should) if recorded.is_floating_point() else None
    if bit is not None:
        found += f", which is the same number with bit {bit} flipped"
    return (
        f"{count:,} of {total:,} numbers of {name} are not what a plain reference gives: {found}."
    )


def _flipped_bit(was: Tensor, should: Tensor) -> int | None:
    """The one bit, 0 the lowest, that turns the right number into the recorded one.

    The lowest bits of the right number are not known to the reference: they may differ.
    """
    words = _WORDS[was.element_size()]
    right = should.to(was.dtype)
    size = was.element_size() * 8
    one, other = (int(value.reshape(1).view(words).item()) for value in (was, right))
    changed = (one ^ other) & ((1 << size) - 1)
    high = changed >> 4  # four bits of rounding
    if high and high & (high - 1) == 0:
        return high.bit_length() + 3
    return None


def _number(value: Tensor) -> str:
    number = value.item()
    return f"{number:.6g}" if isinstance(number, float) else str(number)
