"""Whether the sum of a rotated head is the one that its input and the table give."""

import torch
from torch import Tensor

from tocsin.checker.contract import check
from tocsin.checker.ratios import nothing, over
from tocsin.checker.rotation import rotated_heads
from tocsin.checker.rounding import U32, norm, smallest_step, unit_roundoff
from tocsin.checker.structure import unready
from tocsin.core.calls import RopeCall
from tocsin.core.terms import Priority


@check(
    "numerical.rope_signed_sum",
    priority=Priority.P1,
    impact="attention scores are wrong for one position: the answer drifts, nothing is raised",
    source="sum y = sum x_i (cos_i ± sin_i); a flipped sign keeps the norm, not the sum",
)
def rope_signed_sum(call: RopeCall, limit_ulp: float = 8.0) -> Tensor:
    """Distance of a head's sum from what input and table give, in units of the limit.

    Args:
        call: q_RHSE and k_RKSE with their rotated q_out and k_out; cos and sin as used.
        limit_ulp: allowed distance, in unit roundoffs of the output's dtype, of the input's norm.

    Returns:
        ratio_RS, float32, the largest over heads.
    """
    if (early := unready(call, call.q)) is not None:
        return early
    heads = rotated_heads(call)
    if heads is None:
        return nothing(call)
    half = call.cos.shape[-1] // 2
    cos, sin = call.cos.to(torch.float32), call.sin.to(torch.float32)
    # y = x * cos + cat(-x[half:], x[:half]) * sin, summed: the factor of x_i.
    factors = cos + torch.cat((sin[..., half:], -sin[..., :half]), dim=-1)
    turned, size = 2 * half, call.q.shape[-1]
    x, y = heads
    wide = x.to(torch.float32)
    expected = (wide[..., :turned] * factors[:, None]).sum(dim=-1)
    if turned < size:  # partial rotation: the rest passes through
        expected = expected + wide[..., turned:].sum(dim=-1)
    residual = y.sum(dim=-1, dtype=torch.float32) - expected
    length = norm(wide) * max(1.0, abs(call.table_scale))
    share = limit_ulp * unit_roundoff(y.dtype) + (8 + 3 * size**0.5) * U32
    limit = length * share + 4 * size**0.5 * smallest_step(y.dtype)
    return over(residual, limit).amax(dim=1).reshape(-1)
