"""Whether a sum over ranks is the sum of what the ranks put in."""

import torch
from torch import Tensor

from tocsin.checker.contract import check
from tocsin.checker.ratios import over
from tocsin.checker.rounding import U32, smallest_step, unit_roundoff
from tocsin.checker.structure import unready
from tocsin.core.calls import AllReduceCall
from tocsin.core.terms import Priority


@check(
    "numerical.all_reduce",
    priority=Priority.P0,
    impact="tensor-parallel ranks go on with a wrong or stale sum: garbage that no rank notices",
    source="vllm-project/vllm#19022, ROCm/vllm#247, vllm-project/vllm#20125",
    remedy="repeat the collective; if it repeats, take the rank that differs out of service",
)
def all_reduce(call: AllReduceCall, limit_ulp: float = 2.0) -> Tensor:
    """Distance of the reduced tensor from the partials' sum in float32, in units of the limit.

    Args:
        call: partials [ranks,...,D] and output [...,D].
        limit_ulp: allowed distance, in unit roundoffs of the output's dtype for each addition, of
            the sum of magnitudes (the order of the additions is the collective's).

    Returns:
        ratio_T, float32, the largest over features.
    """
    if (early := unready(call, call.partials, call.output)) is not None:
        return early
    ranks = call.partials.shape[0]
    partials = call.partials.to(torch.float32)
    exact, reach = partials.sum(dim=0), partials.abs().sum(dim=0)
    dtype = call.output.dtype
    share = ranks * (limit_ulp * unit_roundoff(dtype) + U32)
    ratio = over(
        call.output.to(torch.float32) - exact, reach * share + ranks * smallest_step(dtype)
    )
    if ratio.ndim < 2:
        return ratio.amax().reshape(1)
    return ratio.reshape(-1, ratio.shape[-1]).amax(dim=-1)
