"""Whether the rotation kept the length of every pair that it turned."""

import torch
from torch import Tensor

from tocsin.checker.contract import check
from tocsin.checker.ratios import nothing, over
from tocsin.checker.rotation import rotated_heads
from tocsin.checker.rounding import U32, smallest_step, unit_roundoff
from tocsin.checker.structure import unready
from tocsin.core.calls import RopeCall
from tocsin.core.terms import Priority


@check(
    "numerical.rope_norm",
    priority=Priority.P1,
    impact="attention scores are wrong for one position: the answer drifts, nothing is raised",
    source="RoFormer, arXiv:2104.09864, eq. 15: R is orthogonal, so |R x| = |x|",
)
def rope_norm(call: RopeCall, limit_ulp: float = 8.0) -> Tensor:
    """Change of a pair's length by the rotation, in units of the limit.

    Blind to signs and to wrong positions by nature: see rope_signed_sum and rope_table.

    Args:
        call: q_RHSE and k_RKSE with their rotated q_out and k_out; pairs are (i, i + half).
        limit_ulp: allowed relative change, in unit roundoffs of the rotated dtype; measured
            clean maxima are 3 (float16), 2.5 (bfloat16) and 7 (float32).

    Returns:
        ratio_RS, float32, the largest over heads and pairs.
    """
    if (early := unready(call, call.q)) is not None:
        return early
    heads = rotated_heads(call)
    if heads is None:
        return nothing(call)
    before = _lengths(heads[0], call.cos.shape[-1]) * abs(call.table_scale)
    after = _lengths(heads[1], call.cos.shape[-1])
    # 16 more for what this check itself rounds: squares, sums and roots in float32.
    dtype = heads[1].dtype
    allowed = before * (limit_ulp * unit_roundoff(dtype) + 16 * U32)
    ratio = over(after - before, allowed + 4 * max(smallest_step(dtype), _SQUARE_LOST))
    return ratio.amax(dim=(1, 3)).reshape(-1)


_SQUARE_LOST = 2.0**-63  # the square of anything smaller is lost in float32


def _lengths(x: Tensor, turned: int) -> Tensor:
    """[R,H,S,turned/2] float32 lengths of the pairs that the rotation turns."""
    squares = x[..., :turned].to(torch.float32).square()
    return (squares[..., : turned // 2] + squares[..., turned // 2 :]).sqrt()
