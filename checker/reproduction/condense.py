"""Calls that were stored without their large weight: what is left of them that is still exact.

Axes: see tocsin/core/calls.py.
"""

from collections.abc import Collection
from dataclasses import replace

import torch

from tocsin.checker.checks.numerical.linear_checksum import blocks, weighted_sum
from tocsin.checker.rounding import norm
from tocsin.core.calls import Call, LinearCall, LogitsCall


def is_without_weight(call: Call, reduced: Collection[str]) -> bool:
    """Whether the weight in the record merely has the right shape.

    Args:
        reduced: fields of which the snapshot says that only a part was stored.
    """
    if isinstance(call, LogitsCall):  # with "logits", both were cut alike and belong together
        return "weight" in reduced and "logits" not in reduced
    return "weight" in reduced and isinstance(call, LinearCall)


def condensed(call: Call) -> Call | None:
    """A call without the weight that says the same; None where there is none.

    Of a linear layer each block of features becomes one feature: the sum of its weights, which
    was taken when the weight was known good, and the sum of its outputs. Of logits the hidden
    state becomes its length, which is all that bounds them.
    """
    if isinstance(call, LogitsCall):
        hidden = None if call.hidden is None else norm(call.hidden)[..., None]
        return replace(call, hidden=hidden, weight=None, weight_row_sums=None)
    if not isinstance(call, LinearCall) or call.block_sums is None or call.output is None:
        return None
    sums_GD = call.block_sums.to(torch.float32)
    bias_G = call.bias_sums
    if bias_G is None and call.bias is not None:
        bias_G = weighted_sum(blocks(call.bias, call.block_size), call.block_weights)
    return replace(
        call,
        x=call.x.to(torch.float32),
        weight=sums_GD,
        bias=bias_G,
        output=weighted_sum(blocks(call.output, call.block_size), call.block_weights),
        block_sums=sums_GD.clone(),
        bias_sums=bias_G,
        block_weights=None,
        block_size=1,
    )


def words(call: Call) -> str:
    """What can be said without the weight."""
    if isinstance(call, LinearCall):
        small = condensed(call)
        if isinstance(small, LinearCall) and small.output is not None:
            expected = torch.nn.functional.linear(small.x, small.weight, small.bias)
            off = (small.output - expected).abs().nan_to_num(torch.inf, torch.inf)
            at = int(off.reshape(-1).argmax())
            index = [int(one) for one in torch.unravel_index(torch.tensor(at), off.shape)]
            found = float(small.output.reshape(-1)[at])
            ought = float(expected.reshape(-1)[at])
            first = index[-1] * call.block_size
            return (
                "The weight is large and was not stored, so single numbers cannot be recomputed; "
                f"the sums over blocks of {call.block_size} features can. In row {index[:-1]} "
                f"features {first} to {first + call.block_size - 1} add up to {found:.6g}, the "
                f"trusted sums of the weight give {ought:.6g}."
            )
    return (
        "The weight is large and was not stored: the result is held to the bound that the length "
        "of the hidden state gives it."
    )
