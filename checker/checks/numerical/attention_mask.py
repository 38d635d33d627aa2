"""Whether every live query may attend to something, and the mask means what it says."""

import torch
from torch import Tensor

from tocsin.checker.contract import check
from tocsin.checker.masks import allowed_keys
from tocsin.checker.ratios import nothing, violated
from tocsin.checker.structure import unready
from tocsin.core.calls import AttentionCall
from tocsin.core.terms import Priority


@check(
    "numerical.attention_mask",
    priority=Priority.P0,
    impact="a token is made from no context, or from the padding instead of the text",
    source="pytorch/pytorch#103963, huggingface/transformers#32195, deepspeedai/DeepSpeed#1466",
    remedy="build the mask anew: bool, True = may attend, or an additive one with -inf",
)
def attention_mask(call: AttentionCall) -> Tensor:
    """Infinity for a query that the mask leaves without a key, or for a mask turned around.

    A fully masked query is legal only as left padding: later queries of its row are live and
    nobody attends to its own key; its output must then be zero (under an additive mask with a
    finite floor it mixes everything instead, and nobody reads it). Turned around means: each
    query sees fewer keys than the one before it, or an additive mask of zeros and ones.

    Args:
        call: q_RHSE, k_RKLE and a mask; output_RHSE when there is one.

    Returns:
        ratio_RS, float32, 0 or infinity.
    """
    if call.mask is None and not call.causal:
        return nothing(call)
    if (early := unready(call, call.q)) is not None:
        return early
    rows, _, positions, _ = call.q.shape
    keys = call.k.shape[2]
    allowed = allowed_keys(call)
    if allowed is None:  # a single causal query sees every key
        allowed = torch.ones(1, 1, dtype=torch.bool, device=call.q.device)
    allowed = allowed.reshape((1,) * (4 - allowed.ndim) + tuple(allowed.shape))
    # Axes of size 1 stand for all of S or L; expanding is free.
    allowed = allowed.expand(-1, -1, positions, keys)
    blind = ~allowed.any(dim=-1)  # [R|1,H|1,S]
    bad = blind
    if positions > 1:
        padding = blind & _is_left_padding(allowed, blind)
        falls = allowed.sum(dim=-1).diff(dim=-1) < 0
        bad = (blind & ~padding) | falls.all(dim=-1, keepdim=True)
        if call.output is not None and _hides_fully(call):
            bad = bad | (padding & (call.output != 0).any(dim=-1))  # NaN is not 0
    ratio = violated(bad.any(dim=1).expand(rows, -1).reshape(-1))
    return ratio if call.mask is None else torch.maximum(ratio, _polarity(call.mask))


def _is_left_padding(allowed: Tensor, blind: Tensor) -> Tensor:
    """[R|1,H|1,S]: a later query is live, and no query attends to this one's own key."""
    positions, keys = allowed.shape[-2:]
    live_later = (~blind).flip(-1).cumsum(dim=-1).flip(-1) > 0
    if keys < positions:
        return live_later
    return live_later & ~allowed.any(dim=-2)[..., keys - positions :]


def _hides_fully(call: AttentionCall) -> bool:
    """A bool mask gives hidden keys no weight at all, whatever the scores; so does causality."""
    return call.mask is None or call.mask.dtype is torch.bool


def _polarity(mask: Tensor) -> Tensor:
    """[1]: an additive mask of zeros and ones was meant as a bool; +inf and NaN mean nothing."""
    if mask.dtype is torch.bool or mask.numel() == 0:
        return torch.zeros(1, dtype=torch.float32, device=mask.device)
    ones = mask == 1
    turned = (ones | (mask == 0)).all() & ones.any()
    return violated((turned | ~(mask < torch.inf).all()).reshape(1))
