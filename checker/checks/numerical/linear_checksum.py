"""Whether blocks of a linear layer's output add up to what their summed weights give."""

import torch
from torch import Tensor
from torch.nn import functional

from tocsin.checker.contract import check
from tocsin.checker.ratios import bounded, nothing, over, scale_of
from tocsin.checker.rounding import U32, norm, smallest_step, unit_roundoff
from tocsin.checker.structure import unready
from tocsin.core.calls import LinearCall
from tocsin.core.terms import Priority


@check(
    "numerical.linear_checksum",
    priority=Priority.P0,
    impact="one matrix product is wrong: the answer changes without a word",
    catches=("act.bitflip", "weight.bitflip"),
    source="Huang and Abraham 1984, IEEE TC 33(6): checksum rows; blocks and limits: rule R",
)
def linear_checksum(call: LinearCall, limit_ulp: float = 4.0, accumulation: float = 2.0) -> Tensor:
    """Residual of the block checksums, in units of rule R's limit.

    sum of y over a block = x · (sum of the block's weight rows), each feature times its own factor
    where `block_weights` names them: with all 1, two opposite errors cancel. Store rounding allows
    `limit_ulp` roundoffs of the block's norm; accumulation in float32 allows
    `accumulation * sqrt(D)` float32 roundoffs of |x| |W_block|. Neither scale can be inflated by
    the output: its norm counts only up to |x| |W_block|, and one that is not finite alarms.

    Args:
        call: x_TD, weight_ND, output; block_sums, block_norms and bias_sums as taken when the
            weight was known good (then a changed weight is seen too), under block_weights.

    Returns:
        ratio_T, float32, the largest over blocks.
    """
    if call.output is None:
        return nothing(call)
    if (early := unready(call, call.x)) is not None:
        return early
    hidden = call.x.shape[-1]
    x = call.x.reshape(-1, hidden).to(torch.float32)
    y = blocks(call.output.reshape(x.shape[0], -1), call.block_size)
    sums, norms, bias_sums, bias_norms = checksums(call)
    expected = x @ sums.T
    if bias_sums is not None:
        expected = expected + bias_sums
    residual = weighted_sum(y, call.block_weights) - expected
    reach = norm(x)[:, None] * norms
    if bias_norms is not None:
        reach = reach + bias_norms
    dtype = call.output.dtype
    floor = limit_ulp * call.block_size**0.5 * smallest_step(dtype)
    limit = reach * ((accumulation * hidden**0.5 + 4) * U32) + floor
    if unit_roundoff(dtype) > U32:
        limit = limit + bounded(norm(y), reach) * (limit_ulp * unit_roundoff(dtype))
    return over(residual, limit).amax(dim=-1)


def blocks(features_last: Tensor, block_size: int) -> Tensor:
    """[...,N] as [...,G,block], the last block filled up with zeros."""
    missing = -features_last.shape[-1] % block_size
    if missing:
        features_last = functional.pad(features_last, (0, missing))
    return features_last.reshape(*features_last.shape[:-1], -1, block_size)


def weighted_sum(blocks_GB: Tensor, block_weights: Tensor | None) -> Tensor:
    """[...,G] float32 sum over each block, every feature times its factor."""
    if block_weights is None:
        return blocks_GB.sum(dim=-1, dtype=torch.float32)
    return (blocks_GB * block_weights).sum(dim=-1, dtype=torch.float32)


def signed_weights(block_size: int) -> Tensor:
    """[block_size] float32 factors for which no two errors of one size cancel, equal or opposite.

    Random signs, and unequal sizes between 0.75 and 1.25: ones are blind to two opposite errors,
    random signs to half of all pairs. The pattern is fixed, so that sums kept in a file stay good.
    """
    draws = torch.Generator().manual_seed(0x70C51)
    sizes = torch.linspace(0.75, 1.25, block_size)[torch.randperm(block_size, generator=draws)]
    signs = torch.randint(0, 2, (block_size,), generator=draws) * 2 - 1
    return sizes * signs


def checksums(call: LinearCall) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Sums [G,D] and norms [G] of the weight's blocks, and of the bias's, trusted where given."""
    weight = call.weight
    factors = call.block_weights
    sums, norms, bias_sums, bias_norms = call.block_sums, call.block_norms, call.bias_sums, None
    if sums is None or norms is None:
        grouped = blocks(weight.T, call.block_size)  # [D,G,block]
        if sums is None:
            sums = weighted_sum(grouped, factors).T
        if norms is None:
            norms = norm(grouped, dim=(0, 2))
    if call.bias is not None:
        grouped = blocks(call.bias, call.block_size)
        bias_norms = norm(grouped)
        if bias_sums is None:
            bias_sums = weighted_sum(grouped, factors)
    return sums.to(torch.float32), scale_of(norms), bias_sums, bias_norms
