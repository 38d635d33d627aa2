"""What is wrong with the form of a call: dtypes, devices, axes and shapes, never values.

One rule an operator. `memory.tensor_contract` reports it; every other check asks here first, so
that a malformed tensor is an alarm and never an exception. Everything is Python on metadata:
nothing here reads device memory.

Axes: see tocsin/core/calls.py.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from tocsin.checker.ratios import alarm, nothing
from tocsin.checker.structures import attention, layers, tokens
from tocsin.core.calls import (
    AllReduceCall,
    AttentionCall,
    BatchCall,
    Call,
    EmbeddingCall,
    KVReadCall,
    KVUpdateCall,
    LinearCall,
    LogitProcessorCall,
    LogitsCall,
    ResidualCall,
    RMSNormCall,
    RopeCall,
    SamplerCall,
    SwiGLUCall,
    TokenizerOutputCall,
    VarlenAttentionCall,
    WeightCall,
)

_sound: Call | None = None


def assume_sound(call: Call | None) -> None:
    """The form of this very record was looked at: until the next call there is no need to again.

    Another thread's record that comes in between is merely looked at once more.
    """
    global _sound
    _sound = call


def problem(call: Call) -> str:
    """What is wrong with the form of a call, in words; empty when nothing is."""
    if call is _sound:
        return ""
    rule = _RULES.get(type(call))
    return "" if rule is None else rule(call)


def unready(call: Call, *needed: Tensor) -> Tensor | None:
    """The ratio of a call that a check cannot compute on; None when it can.

    Args:
        needed: tensors without whose elements there is nothing to check.
    """
    if problem(call):
        return alarm(call)
    if any(tensor.numel() == 0 for tensor in needed):
        return nothing(call)
    return None


_RULES: dict[type[Call], Callable[[Any], str]] = {
    TokenizerOutputCall: tokens.tokenizer_output,
    EmbeddingCall: layers.embedding,
    RopeCall: layers.rope,
    RMSNormCall: layers.rms_norm,
    LinearCall: layers.linear,
    SwiGLUCall: layers.swiglu,
    ResidualCall: layers.residual,
    AttentionCall: attention.attention,
    VarlenAttentionCall: attention.varlen,
    KVUpdateCall: attention.kv_update,
    KVReadCall: attention.kv_read,
    BatchCall: tokens.batch,
    LogitsCall: layers.logits,
    LogitProcessorCall: tokens.logit_processor,
    SamplerCall: tokens.sampler,
    AllReduceCall: layers.all_reduce,
    WeightCall: tokens.weight,
}
