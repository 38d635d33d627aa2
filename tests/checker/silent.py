"""Who else sees a fault that a check is blind to by nature: another check, on the same case."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tocsin.checker.contract import registry
from tocsin.core import calls

Witness = Callable[[Any, Any], Tensor]
"""`(clean, broken) -> ratio` of the other check."""


def same(check_id: str) -> Witness:
    """Another check of the same operator, on the same record."""
    return lambda clean, broken: registry()[check_id](broken)


def as_linear(clean: calls.LogitsCall, broken: calls.LogitsCall) -> Tensor:
    """Logits are the output of a linear layer: its block sums, kept while the weight was good."""
    assert broken.hidden is not None
    assert clean.weight is not None
    return registry()["numerical.linear_checksum"](
        calls.LinearCall(x=broken.hidden, weight=clean.weight, output=broken.logits)
    )


def as_sequences(clean: calls.VarlenAttentionCall, broken: calls.VarlenAttentionCall) -> Tensor:
    """A packed launch, one sequence after the other, as calls that are not packed."""
    ratios = []
    q_at, k_at = clean.cu_seqlens_q.tolist(), clean.cu_seqlens_k.tolist()
    for row in range(len(q_at) - 1):
        q, k, v, output = (
            tensor[at[row] : at[row + 1]].transpose(0, 1)[None]
            for tensor, at in (
                (broken.q, q_at),
                (broken.k, k_at),
                (broken.v, k_at),
                (broken.output, q_at),
            )
            if tensor is not None
        )
        call = calls.AttentionCall(q=q, k=k, v=v, output=output, causal=True)
        ratios.append(registry()["numerical.attention_row_sum"](call))
    return torch.cat(ratios)


def as_tiles(clean: calls.LinearCall, broken: calls.LinearCall) -> Tensor:
    """The weight's sum, taken at load and read again by the scrubber."""
    sums = [
        call.weight.contiguous().view(torch.uint8).view(-1).long().sum().reshape(1)
        for call in (broken, clean)
    ]
    return registry()["state.weight_sum"](calls.WeightCall(sums=sums[0], sums_expected=sums[1]))
