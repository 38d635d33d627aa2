"""Whether the sum of RMSNorm's output is the one that its input and weight give."""

import torch
from torch import Tensor

from tocsin.checker.contract import check
from tocsin.checker.ratios import bounded, nothing, over
from tocsin.checker.rounding import U32, norm, smallest_step, unit_roundoff
from tocsin.checker.structure import unready
from tocsin.core.calls import RMSNormCall
from tocsin.core.terms import Priority


@check(
    "numerical.rms_dot",
    priority=Priority.P1,
    impact="later layers read a wrong hidden state: the text drifts, nothing is raised",
    catches=("rmsnorm.eps", "rmsnorm.scale_flip"),
    source="sum y = rstd * sum x w, from RMSNorm, arXiv:1910.07467, eq. 4",
)
def rms_dot(call: RMSNormCall, limit_ulp: float = 6.0) -> Tensor:
    """Distance of sum y from rstd * sum x w, in units of the limit; sees signs, unlike rms_range.

    Args:
        call: x_TD and output of it; weight_D, or weight_trusted where there is one.
        limit_ulp: allowed distance, in unit roundoffs of the output's dtype, of the output's norm;
            two roundings a number give a standard deviation of 0.6.

    Returns:
        ratio_T, float32.
    """
    if call.output is None:
        return nothing(call)
    if (early := unready(call, call.x)) is not None:
        return early
    size = call.x.shape[-1]
    x = call.x.reshape(-1, size).to(torch.float32)
    y = call.output.reshape(-1, size)
    weight = (call.weight if call.weight_trusted is None else call.weight_trusted).to(torch.float32)
    rstd = (x.square().mean(dim=-1) + call.eps).rsqrt()
    # Summed pairwise: a matrix-vector product may add one number after the other.
    residual = y.sum(dim=-1, dtype=torch.float32) - rstd * (x * weight).sum(dim=-1)
    # The output's own norm is the best scale, but a fault can inflate it: the input bounds it.
    bound = weight.abs().amax() * (size**0.5 * (1 + 4 * unit_roundoff(y.dtype)))
    scale = bounded(norm(y), bound)
    share = limit_ulp * unit_roundoff(y.dtype) + 3 * size**0.5 * U32
    return over(residual, scale * share + 2 * size**0.5 * smallest_step(y.dtype))
