"""Eager attention whose scores and probabilities a fault can reach.

Axes: R rows · H query heads · K key/value heads · g = H / K · S positions · L keys · E head size.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers.masking_utils import AttentionMaskInterface, eager_mask
from transformers.modeling_utils import AttentionInterface

IMPLEMENTATION = "tocsin_campaign"

Tap = Callable[[str, Tensor], None]
"""`("scores" | "probs", tensor_RHSL)`: may change the tensor in place."""

TAPS: dict[nn.Module, Tap] = {}
"""Who reaches into which attention module."""


def register() -> None:
    """Let models choose `tocsin_campaign`; harmless when done twice."""
    AttentionInterface.register(IMPLEMENTATION, tapped_attention)
    AttentionMaskInterface.register(IMPLEMENTATION, eager_mask)


def tapped_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """Products and softmax as Transformers' eager attention rounds them.

    Args:
        query: [R,H,S,E]; key, value: [R,K,L,E]; attention_mask: additive [R,1,S,L].

    Returns:
        output [R,S,H,E] and probabilities [R,H,S,L].
    """
    rows, heads, positions, size = query.shape
    kv_heads, keys = key.shape[1], key.shape[2]
    scale = size**-0.5 if scaling is None else scaling
    packed = query.reshape(rows, kv_heads, -1, size)  # queries of one key head side by side
    scores = (packed @ key.transpose(2, 3)).view(rows, heads, positions, keys) * scale
    if attention_mask is not None:
        scores = scores + attention_mask[..., :keys]
    tap = TAPS.get(module)
    if tap is not None:
        tap("scores", scores)
    probs = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    if tap is not None:
        tap("probs", probs)
    mixed = probs.view(rows, kv_heads, -1, keys) @ value
    output = mixed.view(rows, heads, positions, size).transpose(1, 2).contiguous()
    return output, probs
