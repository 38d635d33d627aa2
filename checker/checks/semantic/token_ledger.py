"""Whether the tokens that a step feeds in are those that were committed."""

from torch import Tensor

from tocsin.checker.contract import check
from tocsin.checker.ratios import violated
from tocsin.checker.structure import unready
from tocsin.core.calls import BatchCall
from tocsin.core.terms import Phase, Priority, Profile


@check(
    "semantic.token_ledger",
    priority=Priority.P0,
    impact="the model continues a text that the request never had",
    catches=("batch.bad_dtype", "batch.empty", "batch.oob_token", "batch.ragged_swap"),
    source="vllm-project/vllm#25279, tenstorrent/vllm#395: the token before is fed in again",
    profile=Profile.GUARD,
    phase=Phase.BEFORE,
    remedy="take the ids from the ledger of committed tokens",
)
def token_ledger(call: BatchCall) -> Tensor:
    """Infinity where an input id is not the ledger's.

    Args:
        call: input_ids_T and input_ids_expected_T.

    Returns:
        ratio_T, float32, 0 or infinity.
    """
    if (early := unready(call, call.input_ids)) is not None:
        return early
    return violated((call.input_ids != call.input_ids_expected).reshape(-1))
