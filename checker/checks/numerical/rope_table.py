"""Whether cos and sin are those of the positions and of the trusted frequencies."""

import torch
from torch import Tensor

from tocsin.checker.contract import check
from tocsin.checker.ratios import over
from tocsin.checker.rounding import U32, unit_roundoff
from tocsin.checker.structure import unready
from tocsin.core.calls import RopeCall
from tocsin.core.terms import Priority


@check(
    "numerical.rope_table",
    priority=Priority.P0,
    impact="new tokens are rotated unlike the cached ones: the model loses its place in the text",
    catches=("rope.pos_jump", "rope.table"),
    source="EleutherAI/gpt-neox#1003, huggingface/transformers#27227; RoFormer, arXiv:2104.09864",
    remedy="recompute the table in float32 from the model's configuration",
)
def rope_table(call: RopeCall, limit_ulp: float = 4.0, spot_rows: float = 64.0) -> Tensor:
    """Distance of the table from cos² + sin² = scale², and from float64 angles, over the limit.

    Args:
        call: cos and sin [R|1,S,E]; with inv_freq, angles are recomputed from position_ids.
        limit_ulp: allowed distance, in unit roundoffs of the table's dtype; an angle may also be
            off by as many float32 roundoffs of itself, as the table is computed in float32.
        spot_rows: largest number of positions recomputed a call, spread evenly.

    Returns:
        ratio_RS, float32.
    """
    if (early := unready(call, call.q, call.cos)) is not None:
        return early
    roundoff = unit_roundoff(call.cos.dtype)
    square = call.table_scale**2
    cos, sin = call.cos.to(torch.float32), call.sin.to(torch.float32)
    residual = cos.square() + sin.square() - square
    limit = square * (limit_ulp * roundoff + 4 * U32)
    ratio = over(residual, limit).amax(dim=-1)
    if call.inv_freq is not None:
        count = max(1, int(spot_rows))
        ratio = torch.maximum(ratio, _angles(call, call.inv_freq, limit_ulp, count))
    rows, positions = call.q.shape[0], call.q.shape[2]
    return ratio.expand(rows, positions).reshape(-1)


def _angles(call: RopeCall, inv_freq: Tensor, limit_ulp: float, count: int) -> Tensor:
    """[R,S], or [R,1] where only spot rows were recomputed: distance from the float64 table."""
    positions, cos, sin = call.position_ids, call.cos, call.sin
    half = cos.shape[-1] // 2
    spots = cos.shape[1] > count
    if spots:
        last = cos.shape[1] - 1
        at = torch.linspace(0, last, count, device=cos.device).round().to(torch.int64)
        positions, cos, sin = positions[:, at], cos[:, at], sin[:, at]
    angle = positions[..., None].to(torch.float64) * inv_freq.to(torch.float64)
    scale = call.table_scale
    exact = torch.stack((angle.cos(), angle.sin())).mul(scale).to(torch.float32)  # [2,R,S,E/2]
    table = torch.stack((cos, sin)).to(torch.float32)
    table = table.reshape(*table.shape[:-1], 2, half)  # cos and sin stand twice side by side
    # Beyond a quarter nothing is left of an angle; a position that exploded widens no limit.
    own = (4 * U32 * (1 + angle.abs())).clamp_max(0.25)
    share = limit_ulp * unit_roundoff(call.cos.dtype) + own
    limit = (abs(scale) * share).to(torch.float32)
    ratio = over(table - exact[..., None, :], limit[..., None, :]).amax(dim=(0, 3, 4))
    return ratio.amax(dim=-1, keepdim=True) if spots else ratio
