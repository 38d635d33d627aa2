"""Whether the output of RMSNorm has the size that its input allows."""

import torch
from torch import Tensor

from tocsin.checker.contract import check
from tocsin.checker.ratios import nothing, over
from tocsin.checker.rounding import U32, norm, smallest_step, unit_roundoff
from tocsin.checker.structure import unready
from tocsin.core.calls import RMSNormCall
from tocsin.core.terms import Priority

_SMALL = 1e-3  # channels with a weight below this share of the largest are left out: y / w is noise


@check(
    "numerical.rms_range",
    priority=Priority.P1,
    impact="later layers read a hidden state of the wrong size: the text drifts, nothing is raised",
    catches=("rmsnorm.eps",),
    source="RMSNorm, arXiv:1910.07467, eq. 4; nntrainer/nntrainer#3935, pytorch/pytorch#41527",
    remedy="compute the statistics in float32, with eps as configured",
)
def rms_range(call: RMSNormCall, limit_ulp: float = 4.0) -> Tensor:
    """Distance of the output's RMS from sqrt(ms / (ms + eps)), in units of the limit.

    Sees a wrong eps or scale, overflow of the squares and an all-zero output; blind to signs.

    Args:
        call: x_TD and output of it; weight_D, or weight_trusted where there is one.
        limit_ulp: allowed relative distance, in unit roundoffs of the output's dtype.

    Returns:
        ratio_T, float32.
    """
    if call.output is None:
        return nothing(call)
    if (early := unready(call, call.x)) is not None:
        return early
    x = call.x.reshape(-1, call.x.shape[-1]).to(torch.float32)
    y = call.output.reshape(x.shape).to(torch.float32)
    weight = (call.weight if call.weight_trusted is None else call.weight_trusted).to(torch.float32)
    magnitude = weight.abs()
    largest = magnitude.amax()
    kept = magnitude > _SMALL * largest
    inverse = torch.where(kept, weight.reciprocal(), 0.0)
    squares = x.square()
    mean = squares.mean(dim=-1)
    expected = ((squares @ kept.to(torch.float32)) / (mean + call.eps)).sqrt()
    found = norm(y * inverse)
    step = smallest_step(call.output.dtype) * (1.0 + norm(inverse))
    step = step + 0.0 * largest  # a weight that is no number leaves no channel: no limit either
    roundoff = limit_ulp * unit_roundoff(call.output.dtype) + 32 * U32
    return over(found - expected, expected * roundoff + step)
