"""`numerical.rope_norm`, `rope_signed_sum` and `finite` in one pass over queries and keys."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tocsin.checker.checks.numerical.rope_norm import _SQUARE_LOST
from tocsin.checker.contract import registry
from tocsin.checker.rounding import U32, largest, smallest_step, unit_roundoff
from tocsin.checker.triton.launch import block, launch, over
from tocsin.core.calls import RopeCall


def rope_ratios(
    call: RopeCall,
    *,
    norm_ulp: float | None = None,
    sum_ulp: float | None = None,
    headroom: float = 1.0,
    debug: bool = False,
) -> Tensor:
    """[3,R*S] float32: ratios of `rope_norm`, `rope_signed_sum` and `finite` over all heads.

    Args:
        call: with q_out and k_out; one of them may be missing.
        norm_ulp, sum_ulp: limits; None: as declared.
        headroom: share of the dtype's range that may be used.
    """
    pairs = [(x, y) for x, y in ((call.q, call.q_out), (call.k, call.k_out)) if y is not None]
    rows, _, positions, size = call.q.shape
    ratios = torch.zeros(3, rows * positions, dtype=torch.float32, device=call.q.device)
    turned = call.cos.shape[-1]
    cos, sin = call.cos.contiguous(), call.sin.contiguous()
    declared = registry()
    norm_limit = declared["numerical.rope_norm"].thresholds["limit_ulp"]
    sum_limit = declared["numerical.rope_signed_sum"].thresholds["limit_ulp"]
    scale = abs(call.table_scale)
    for x, y in pairs:
        x, y = (one if one.stride(-1) == 1 else one.contiguous() for one in (x, y))
        roundoff, step = unit_roundoff(y.dtype), smallest_step(y.dtype)
        limit = sum_limit if sum_ulp is None else sum_ulp
        sum_share = limit * roundoff + (8 + 3 * size**0.5) * U32
        launch(
            _rope,
            rows * positions,
            x,
            y,
            cos,
            sin,
            ratios,
            *x.stride()[:3],
            *y.stride()[:3],
            positions * turned if cos.shape[0] == rows and rows > 1 else 0,
            positions,
            x.shape[1],
            size,
            turned // 2,
            scale,
            (norm_limit if norm_ulp is None else norm_ulp) * roundoff + 16 * U32,
            4 * max(step, _SQUARE_LOST),
            max(1.0, scale) * sum_share,
            4 * size**0.5 * step,
            1 / (largest(y.dtype) * headroom),
            HALF=block(turned // 2),
            REST=block(size - turned) if size > turned else 0,
            debug=debug,
        )
    return ratios


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _rope(  # type: ignore[no-untyped-def]
    x_ptr,
    y_ptr,
    cos_ptr,
    sin_ptr,
    ratios_ptr,
    x_row,
    x_head,
    x_position,
    y_row,
    y_head,
    y_position,
    table_row,
    positions,
    heads,
    size,
    half,
    scale,
    norm_share,
    norm_floor,
    sum_share,
    sum_floor,
    per_largest,
    HALF: tl.constexpr,
    REST: tl.constexpr,
    DEBUG: tl.constexpr,
):
    """One program a token; it keeps the larger of what stands there and what it finds."""
    token, tokens = tl.program_id(0), tl.num_programs(0)
    row, position = token // positions, token % positions
    at = tl.arange(0, HALF)
    inside = at < half
    table = row * table_row + position * 2 * half
    cos_1 = tl.load(cos_ptr + table + at, mask=inside, other=0.0).to(tl.float32)
    cos_2 = tl.load(cos_ptr + table + half + at, mask=inside, other=0.0).to(tl.float32)
    sin_1 = tl.load(sin_ptr + table + at, mask=inside, other=0.0).to(tl.float32)
    sin_2 = tl.load(sin_ptr + table + half + at, mask=inside, other=0.0).to(tl.float32)
    worst_norm = tl.load(ratios_ptr + token)
    worst_sum = tl.load(ratios_ptr + tokens + token)
    most = tl.zeros((HALF,), tl.float32)
    rest_most = 0.0
    for head in range(heads):
        x_at = x_ptr + row * x_row + head * x_head + position * x_position
        y_at = y_ptr + row * y_row + head * y_head + position * y_position
        x_1 = tl.load(x_at + at, mask=inside, other=0.0).to(tl.float32)
        x_2 = tl.load(x_at + half + at, mask=inside, other=0.0).to(tl.float32)
        y_1 = tl.load(y_at + at, mask=inside, other=0.0).to(tl.float32)
        y_2 = tl.load(y_at + half + at, mask=inside, other=0.0).to(tl.float32)
        larger = tl.maximum(tl.abs(y_1), tl.abs(y_2))
        most = tl.maximum(most, tl.where((y_1 == y_1) & (y_2 == y_2), larger, float("inf")))
        before = tl.sqrt(x_1 * x_1 + x_2 * x_2) * scale
        after = tl.sqrt(y_1 * y_1 + y_2 * y_2)
        pairs = over(after - before, before * norm_share + norm_floor)
        worst_norm = tl.maximum(worst_norm, tl.max(tl.where(inside, pairs, 0.0), axis=0))
        # y = x * cos + cat(-x[half:], x[:half]) * sin, summed: the factor of each input.
        expected = tl.sum(x_1 * (cos_1 + sin_2) + x_2 * (cos_2 - sin_1), axis=0)
        found = tl.sum(y_1 + y_2, axis=0)
        squares = tl.sum(x_1 * x_1 + x_2 * x_2, axis=0)
        if REST > 0:  # partial rotation: the rest passes through
            behind = 2 * half + tl.arange(0, REST)
            there = behind < size
            x_rest = tl.load(x_at + behind, mask=there, other=0.0).to(tl.float32)
            y_rest = tl.load(y_at + behind, mask=there, other=0.0).to(tl.float32)
            expected += tl.sum(x_rest, axis=0)
            found += tl.sum(y_rest, axis=0)
            squares += tl.sum(x_rest * x_rest, axis=0)
            rest = tl.where(y_rest == y_rest, tl.abs(y_rest), float("inf"))
            rest_most = tl.maximum(rest_most, tl.max(rest, axis=0))
        limit = tl.sqrt(squares) * sum_share + sum_floor
        worst_sum = tl.maximum(worst_sum, over(found - expected, limit))
    tl.store(ratios_ptr + token, worst_norm)
    tl.store(ratios_ptr + tokens + token, worst_sum)
    share = tl.maximum(tl.max(most, axis=0), rest_most) * per_largest
    held = tl.load(ratios_ptr + 2 * tokens + token)
    tl.store(ratios_ptr + 2 * tokens + token, tl.maximum(held, share))
    if DEBUG:
        tl.device_assert(worst_norm <= 1.0, "numerical.rope_norm: a pair has changed its length")
        tl.device_assert(worst_sum <= 1.0, "numerical.rope_signed_sum: a head has another sum")
