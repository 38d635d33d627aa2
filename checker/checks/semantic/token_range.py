"""Whether every token id is in the vocabulary."""

from torch import Tensor

from tocsin.checker.contract import check
from tocsin.checker.ratios import violated
from tocsin.checker.structure import unready
from tocsin.core.calls import BatchCall, EmbeddingCall, TokenizerOutputCall
from tocsin.core.terms import Phase, Priority, Profile


@check(
    "semantic.token_range",
    priority=Priority.P0,
    impact="the embedding reads beyond its table: a crash, or a token that nobody sent",
    catches=("batch.bad_dtype", "batch.empty", "batch.oob_token"),
    source="vllm-project/vllm#46899: placeholders of -1 become input; vllm-project/vllm#6521",
    profile=Profile.GUARD,
    phase=Phase.BEFORE,
    remedy="refuse the request; if it came from the engine, take the ids from the ledger",
)
def token_range(call: TokenizerOutputCall | EmbeddingCall | BatchCall) -> Tensor:
    """Infinity where an id is below 0 or not below the size of the vocabulary.

    Args:
        call: input_ids of any shape with the size of the vocabulary or the embedding's weight.

    Returns:
        ratio_T, float32, 0 or infinity.
    """
    if (early := unready(call, call.input_ids)) is not None:
        return early
    size = call.weight.shape[0] if isinstance(call, EmbeddingCall) else call.vocab_size
    return violated(((call.input_ids < 0) | (call.input_ids >= size)).reshape(-1))
