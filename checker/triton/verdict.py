"""The verdict's reduction: the worst ratio of each site, times the site's level."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tocsin.checker.triton.launch import block, launch


def verdict(buffer: Tensor, levels: Tensor, *, debug: bool = False) -> Tensor:
    """[sites] float32: the one thing that leaves the device in a step; NaN wins.

    Args:
        buffer: [sites,columns] float32 ratios; levels: [sites] float32, 0 switches a site off,
            whatever stands in its line.
    """
    worst = torch.empty(buffer.shape[0], dtype=torch.float32, device=buffer.device)
    launch(
        _verdict,
        buffer.shape[0],
        buffer,
        levels,
        worst,
        buffer.stride(0),
        buffer.shape[1],
        BLOCK=block(buffer.shape[1]),
        debug=debug,
    )
    return worst


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _verdict(  # type: ignore[no-untyped-def]
    buffer_ptr,
    levels_ptr,
    worst_ptr,
    stride,
    columns,
    BLOCK: tl.constexpr,
    DEBUG: tl.constexpr,
):
    """One program a site; NaN is counted, since a maximum may drop it."""
    site = tl.program_id(0)
    level = tl.load(levels_ptr + site)
    held = tl.zeros((BLOCK,), tl.float32)
    lost = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        ratio = tl.load(buffer_ptr + site * stride + at, mask=at < columns, other=0.0)
        lost += (ratio != ratio).to(tl.int32)
        held = tl.maximum(held, tl.where(ratio == ratio, ratio, 0.0))
    worst = tl.max(held, axis=0)
    worst = tl.where(tl.sum(lost, axis=0) > 0, float("nan"), worst)
    worst = tl.where(level > 0.0, worst * level, 0.0)
    tl.store(worst_ptr + site, worst)
    if DEBUG:
        tl.device_assert(worst <= 1.0, "a check of this step alarms")
