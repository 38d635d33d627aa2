"""Whether a lookup returned the rows of the table that it was asked for."""

import torch
from torch import Tensor

from tocsin.checker.contract import check
from tocsin.checker.ratios import nothing, violated
from tocsin.checker.rounding import words
from tocsin.checker.structure import unready
from tocsin.core.calls import EmbeddingCall
from tocsin.core.terms import Priority


@check(
    "numerical.embedding_rows",
    priority=Priority.P0,
    impact="the model reads another word than the one that was sent: a fluent, wrong answer",
    catches=(),
    source="a lookup copies, it does not compute: exact; sgl-project/sglang#38319: stale inputs",
)
def embedding_rows(call: EmbeddingCall) -> Tensor:
    """Infinity for a token whose output is not, bit for bit, the row of its id.

    Args:
        call: input_ids of any shape, weight_VD, output [...,D].

    Returns:
        ratio_T, float32, 0 or infinity.
    """
    if call.output is None:
        return nothing(call)
    if (early := unready(call, call.input_ids, call.weight, call.output)) is not None:
        return early
    ids = call.input_ids.reshape(-1).to(torch.int64)
    rows = call.weight.shape[0]
    found = call.output.reshape(ids.numel(), -1)
    wanted = call.weight[ids.clamp(0, rows - 1)].to(found.dtype)
    bad = (words(found) != words(wanted)).any(dim=-1)
    return violated(bad | (ids < 0) | (ids >= rows))
