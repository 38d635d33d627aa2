"""Whether a logit processor only took choices away."""

import torch
from torch import Tensor

from tocsin.checker import native
from tocsin.checker.contract import check
from tocsin.checker.ratios import violated
from tocsin.checker.structure import unready
from tocsin.core.calls import LogitProcessorCall
from tocsin.core.terms import Priority, Profile


@check(
    "semantic.logit_processor",
    priority=Priority.P1,
    impact="forbidden text becomes possible, or the only allowed answer impossible",
    source="vllm-project/vllm#42403: grammar masks of the wrong row; vllm-project/vllm#1309",
    profile=Profile.GUARD,
    remedy="apply the processor again to the same row; check which row's mask it was given",
)
def logit_processor(call: LogitProcessorCall) -> Tensor:
    """Infinity for a row in which a masking processor did anything but mask.

    Each logit stays as it was or becomes -inf (or the dtype's lowest number); at least one is
    left; with `allowed`, exactly the forbidden ones are masked.

    Args:
        call: before and after [R,V], allowed [R,V] bool.

    Returns:
        ratio_R, float32, 0 or infinity.
    """
    if (early := unready(call, call.before)) is not None:
        return early
    size = call.before.shape[-1]
    before, after = call.before.reshape(-1, size), call.after.reshape(-1, size)
    allowed = None if call.allowed is None else call.allowed.reshape(-1, size)
    if native.loaded() and all(_is_plain(one) for one in (before, after, allowed)):
        return violated(~torch.ops.tocsin.only_masked(before, after, allowed))
    masked = after <= torch.finfo(after.dtype).min
    good = masked | (after == before.to(after.dtype))
    left = ~masked & (after < torch.inf)
    if allowed is not None:
        already = before <= torch.finfo(before.dtype).min
        good = good & (masked == (~allowed | already))
    # Bytes are compared many at a time, truths one by one.
    bytes_good, bytes_left = good.view(torch.uint8), left.view(torch.uint8)
    return violated((bytes_good.amin(dim=-1) == 0) | (bytes_left.amax(dim=-1) == 0))


def _is_plain(tensor: Tensor | None) -> bool:
    """Whether the operator can read it."""
    if tensor is None:
        return True
    readable = tensor.dtype in (torch.float32, torch.bool) and tensor.is_contiguous()
    return readable and tensor.device.type == "cpu"
