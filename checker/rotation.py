"""Query and key heads of a rotary call side by side: one pass over both."""

import torch
from torch import Tensor

from tocsin.core.calls import RopeCall


def rotated_heads(call: RopeCall) -> tuple[Tensor, Tensor] | None:
    """Heads before and after the rotation, [R,H+K,S,E] each; None while there is no output."""
    pairs = [
        (x, y)
        for x, y in ((call.q, call.q_out), (call.k, call.k_out))
        if y is not None and y.numel() > 0
    ]
    if not pairs:
        return None
    if len(pairs) == 1:
        return pairs[0]
    (q, q_out), (k, k_out) = pairs
    return torch.cat((q, k), dim=1), torch.cat((q_out, k_out), dim=1)
