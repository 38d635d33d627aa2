"""Whether the weights in memory are still those that were loaded."""

from torch import Tensor

from tocsin.checker.contract import check
from tocsin.checker.ratios import violated
from tocsin.checker.structure import unready
from tocsin.core.calls import WeightCall
from tocsin.core.terms import Priority, Profile


@check(
    "state.weight_sum",
    priority=Priority.P0,
    impact="every answer of this replica is computed with a changed weight",
    catches=("rmsnorm.scale_flip", "weight.bitflip"),
    source="ggml-org/llama.cpp#8685; huggingface/transformers#48154",
    profile=Profile.GUARD,
    remedy="copy the weight again from the cold copy and verify it",
)
def weight_sum(call: WeightCall) -> Tensor:
    """Infinity where a weight's 64-bit sum differs from the one taken when the model was loaded.

    Args:
        call: sums read now and sums expected, of the same weights.

    Returns:
        ratio, [1], float32, 0 or infinity: a weight serves every row.
    """
    if (early := unready(call, call.sums)) is not None:
        return early
    return violated((call.sums != call.sums_expected).any().reshape(1))
