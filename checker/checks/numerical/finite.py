"""Whether the largest magnitude of an operator's output is still a number of its dtype."""

import torch
from torch import Tensor

from tocsin.checker.contract import check
from tocsin.checker.ratios import alarm, nothing
from tocsin.checker.rounding import largest
from tocsin.checker.structure import problem
from tocsin.core.calls import (
    AllReduceCall,
    AttentionCall,
    EmbeddingCall,
    KVUpdateCall,
    LinearCall,
    LogitsCall,
    ResidualCall,
    RMSNormCall,
    RopeCall,
    SwiGLUCall,
    VarlenAttentionCall,
)
from tocsin.core.terms import Operator, Priority

Finite = (
    EmbeddingCall
    | RopeCall
    | RMSNormCall
    | LinearCall
    | SwiGLUCall
    | ResidualCall
    | AttentionCall
    | VarlenAttentionCall
    | KVUpdateCall
    | LogitsCall
    | AllReduceCall
)

# What the operator made; where it is not there yet, what it is about to use.
_OUTPUTS = {
    RopeCall: ("q_out", "k_out"),
    KVUpdateCall: ("new_key", "new_value"),
    LogitsCall: ("logits",),
}
_INPUTS = ("x", "delta", "gate", "up", "q", "k", "v", "qkv", "cos", "sin", "weight", "bias")
_HEADS_FIRST = (RopeCall, AttentionCall)


@check(
    "numerical.finite",
    priority=Priority.P0,
    impact="every later token of the request is lost: it comes back empty, with HTTP 200",
    catches=("act.nan", "attn.softmax_inf"),
    source="vllm-project/vllm#18777, #50283; one reduction, because isfinite().all() costs 18-45x",
    guard_at=(Operator.ATTENTION, Operator.LOGITS),
)
def finite(call: Finite, headroom: float = 1.0) -> Tensor:
    """Largest magnitude of a token as a share of the largest number of the dtype.

    NaN and infinity survive the maximum, so one reduction finds them and measures the headroom.

    Args:
        call: any operator with a floating output; without an output its inputs are looked at.
        headroom: share of the dtype's range that may be used.

    Returns:
        ratio_T, float32; [1] where tokens have no common axis.
    """
    if problem(call):
        return alarm(call)
    parts = [
        _magnitude(call, tensor) / (largest(tensor.dtype) * headroom) for tensor in _seen(call)
    ]
    if not parts:
        return nothing(call)
    ratio = parts[0]
    for part in parts[1:]:
        aligned = part if part.numel() == ratio.numel() else part.amax().reshape(1)
        ratio = torch.maximum(ratio, aligned)
    return ratio.to(torch.float32)


def _seen(call: Finite) -> list[Tensor]:
    """Floating outputs of a call, or its floating inputs while it has no output."""
    for names in (_OUTPUTS.get(type(call), ("output",)), _INPUTS):
        found = [
            tensor
            for name in names
            if isinstance(tensor := getattr(call, name, None), Tensor) and tensor.numel() > 0
        ]
        if found:
            return found
    return []


def _magnitude(call: Finite, tensor: Tensor) -> Tensor:
    """Largest absolute value of each token, float32 or wider; NaN where there is one."""
    if tensor.ndim > 1:
        # Along one axis this is 3-20 times as fast on a CPU as aminmax(dim=…).
        tensor = tensor.abs().amax(dim=-1)
        if isinstance(call, _HEADS_FIRST) and tensor.ndim == 3:
            tensor = tensor.amax(dim=1)  # [R,H,S] → [R,S]
        elif isinstance(call, VarlenAttentionCall | KVUpdateCall):
            tensor = tensor.flatten(1).amax(dim=1)  # [T,H] → [T]
    else:
        tensor = tensor.abs().amax()
    wide = torch.float64 if tensor.dtype is torch.float64 else torch.float32
    return tensor.reshape(-1).to(wide)
