"""`numerical.rms_dot`, `rms_range` and `finite` of a norm in one pass over input and output."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from tocsin.checker.checks.numerical.rms_range import _SMALL
from tocsin.checker.contract import registry
from tocsin.checker.rounding import U32, largest, norm, smallest_step, unit_roundoff
from tocsin.checker.triton.launch import block, launch, over


@dataclass(frozen=True, slots=True)
class NormWeight:
    """What the kernel needs of a weight, computed once.

    Attributes:
        weight: [D] float32; inverse: [D] float32, 0 for channels too small to divide by.
        facts: [2] float32, the largest magnitude and the norm of `inverse`.
    """

    weight: Tensor
    inverse: Tensor
    facts: Tensor


def norm_weight(weight_D: Tensor) -> NormWeight:
    """The effective weight of a norm, as the kernel reads it."""
    weight = weight_D.detach().to(torch.float32).contiguous()
    magnitude = weight.abs()
    most = magnitude.amax()
    inverse = torch.where(magnitude > _SMALL * most, weight.reciprocal(), 0.0)
    return NormWeight(weight, inverse, torch.stack((most, norm(inverse))))


def rms_norm_ratios(
    x: Tensor,
    y: Tensor,
    weight: NormWeight,
    eps: float,
    *,
    dot_ulp: float | None = None,
    range_ulp: float | None = None,
    headroom: float = 1.0,
    debug: bool = False,
) -> Tensor:
    """[3,T] float32: ratios of `rms_dot`, `rms_range` and `finite` of every token.

    Args:
        x: [...,D] floating; y: the norm's output, of the same shape.
        dot_ulp, range_ulp: limits; None: as declared.
        headroom: share of the dtype's range that may be used.
    """
    size = x.shape[-1]
    x_TD, y_TD = x.reshape(-1, size).contiguous(), y.reshape(-1, size).contiguous()
    ratios = torch.empty(3, x_TD.shape[0], dtype=torch.float32, device=x.device)
    declared = registry()
    dot = declared["numerical.rms_dot"].thresholds["limit_ulp"] if dot_ulp is None else dot_ulp
    spread = (
        declared["numerical.rms_range"].thresholds["limit_ulp"] if range_ulp is None else range_ulp
    )
    roundoff, step = unit_roundoff(y.dtype), smallest_step(y.dtype)
    launch(
        _rms_norm,
        x_TD.shape[0],
        x_TD,
        y_TD,
        weight.weight,
        weight.inverse,
        weight.facts,
        ratios,
        x_TD.shape[0],
        size,
        eps,
        size**0.5 * (1 + 4 * roundoff),
        dot * roundoff + 3 * size**0.5 * U32,
        2 * size**0.5 * step,
        spread * roundoff + 32 * U32,
        step,
        1 / (largest(y.dtype) * headroom),
        BLOCK=block(size),
        debug=debug,
    )
    return ratios


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _rms_norm(  # type: ignore[no-untyped-def]
    x_ptr,
    y_ptr,
    weight_ptr,
    inverse_ptr,
    facts_ptr,
    ratios_ptr,
    tokens,
    size,
    eps,
    reach,
    dot_share,
    dot_floor,
    range_share,
    range_floor,
    per_largest,
    BLOCK: tl.constexpr,
    DEBUG: tl.constexpr,
):
    """One program a token; partial sums stay apart until the end, as in a pairwise sum."""
    token = tl.program_id(0)
    squares = tl.zeros((BLOCK,), tl.float32)
    products = tl.zeros((BLOCK,), tl.float32)
    kept = tl.zeros((BLOCK,), tl.float32)
    outputs = tl.zeros((BLOCK,), tl.float32)
    output_squares = tl.zeros((BLOCK,), tl.float32)
    undone = tl.zeros((BLOCK,), tl.float32)
    most = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, size, BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < size
        x = tl.load(x_ptr + token * size + at, mask=inside, other=0.0).to(tl.float32)
        y = tl.load(y_ptr + token * size + at, mask=inside, other=0.0).to(tl.float32)
        weight = tl.load(weight_ptr + at, mask=inside, other=0.0)
        inverse = tl.load(inverse_ptr + at, mask=inside, other=0.0)
        squares += x * x
        products += x * weight
        kept += tl.where(inverse != 0.0, x * x, 0.0)
        outputs += y
        output_squares += y * y
        undone += (y * inverse) * (y * inverse)
        most = tl.maximum(most, tl.where(y == y, tl.abs(y), float("inf")))
    mean = tl.sum(squares, axis=0) / size
    largest = tl.load(facts_ptr)
    inverse_norm = tl.load(facts_ptr + 1)
    # rms_dot: the sum of the output, on the scale of its norm, bounded by what the input allows.
    residual = tl.sum(outputs, axis=0) - tl.sum(products, axis=0) / tl.sqrt(mean + eps)
    length = tl.sqrt(tl.sum(output_squares, axis=0))
    bound = largest * reach
    scale = tl.where(length < bound, length, bound)  # NaN in the bound stays, and is no limit
    dot = over(residual, scale * dot_share + dot_floor)
    # rms_range: the size of the output without its weight.
    expected = tl.sqrt(tl.sum(kept, axis=0) / (mean + eps))
    found = tl.sqrt(tl.sum(undone, axis=0))
    floor = range_floor * (1.0 + inverse_norm) + 0.0 * largest
    spread = over(found - expected, expected * range_share + floor)
    tl.store(ratios_ptr + token, dot)
    tl.store(ratios_ptr + tokens + token, spread)
    tl.store(ratios_ptr + 2 * tokens + token, tl.max(most, axis=0) * per_largest)
    if DEBUG:
        tl.device_assert(dot <= 1.0, "numerical.rms_dot: the sum of the output is not its input's")
        tl.device_assert(spread <= 1.0, "numerical.rms_range: the output has another size")
