"""Whether the tensors of a call have the dtypes, devices, strides and shapes of its contract."""

from torch import Tensor

from tocsin.checker.contract import check
from tocsin.checker.ratios import alarm, clear
from tocsin.checker.structure import problem
from tocsin.core.calls import (
    AllReduceCall,
    AttentionCall,
    EmbeddingCall,
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
)
from tocsin.core.terms import Operator, Priority

AnyCall = (
    TokenizerOutputCall
    | EmbeddingCall
    | RopeCall
    | RMSNormCall
    | LinearCall
    | SwiGLUCall
    | ResidualCall
    | AttentionCall
    | VarlenAttentionCall
    | KVUpdateCall
    | LogitsCall
    | LogitProcessorCall
    | SamplerCall
    | AllReduceCall
)


@check(
    "memory.tensor_contract",
    priority=Priority.P0,
    impact="a kernel reads the right bytes as the wrong numbers, or memory that is not its own",
    source="thu-ml/SageAttention#386, pytorch/pytorch#163597: strides misread, wrong values",
    # Under `guard` at the edges: where tensors come from outside of a layer, or from a cache.
    guard_at=(
        Operator.TOKENIZER_OUTPUT,
        Operator.EMBEDDING,
        Operator.ATTENTION,
        Operator.FLASH_ATTN_VARLEN,
        Operator.KV_UPDATE,
        Operator.LOGITS,
        Operator.LOGIT_PROCESSOR,
        Operator.SAMPLER,
        Operator.ALL_REDUCE,
    ),
    remedy="correct the caller; the operator's contract stands in docs/contracts.md",
)
def tensor_contract(call: AnyCall) -> Tensor:
    """Infinity where dtype, device, stride, axes or shape of an operand break the contract.

    Args:
        call: any operator's; only metadata is looked at, never a value.

    Returns:
        ratio, [1], float32, 0 or infinity.
    """
    return alarm(call) if problem(call) else clear(call)
