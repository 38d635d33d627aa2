"""Which keys a query of an attention call may attend to.

Axes: R rows · H query heads · K key/value heads · S query positions · L key positions.
"""

import torch
from torch import Tensor

from tocsin.core.calls import AttentionCall

MASKED_BELOW = -9_000.0
"""A score lowered by this much has no weight left; older models mask with -1e4 instead of -inf."""


def allowed_keys(call: AttentionCall) -> Tensor | None:
    """Bool, broadcastable to [R,H,S,L], True where a query may attend; None: everywhere.

    An additive entry that is NaN counts as allowed: it reaches the scores and makes them NaN.
    """
    allowed: Tensor | None = None
    if call.mask is not None:
        mask = _four_axes(call.mask)
        allowed = mask if mask.dtype is torch.bool else ~(mask <= MASKED_BELOW)
    if call.causal and call.q.shape[2] > 1:
        causal = causal_keys(call.q.shape[2], call.k.shape[2], call.q.device)
        allowed = causal if allowed is None else allowed & causal
    return allowed


def added_scores(call: AttentionCall) -> Tensor | None:
    """What an additive mask adds to the scores, broadcastable to [R,H,S,L]; None without one."""
    if call.mask is None or call.mask.dtype is torch.bool:
        return None
    return _four_axes(call.mask)


def causal_keys(positions: int, keys: int, device: torch.device) -> Tensor:
    """[S,L] bool, aligned at the bottom right: the last query sees every key."""
    query = torch.arange(positions, device=device)[:, None] + (keys - positions)
    return torch.arange(keys, device=device)[None, :] <= query


def by_kv_head(tensor_RHx: Tensor, kv_heads: int) -> Tensor:
    """[R,H,...] as [R,K,G,...]: the G query heads that share a key/value head side by side."""
    rows, heads, *rest = tensor_RHx.shape
    return tensor_RHx.reshape(rows, kv_heads, heads // kv_heads, *rest)


def _four_axes(mask: Tensor) -> Tensor:
    return mask.reshape((1,) * (4 - mask.ndim) + tuple(mask.shape))
