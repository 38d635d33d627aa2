"""What is wrong with the form of a call that takes or makes tokens, in words or empty.

Axes: see tocsin/core/calls.py.
"""

import torch
from torch import Tensor

from tocsin.checker.operands import (
    apart,
    differs,
    no_axis,
    not_floating,
    not_integer,
    wrong_dtype,
    wrong_shape,
)
from tocsin.checker.rounding import FLOATS, INTEGERS
from tocsin.core.calls import (
    BatchCall,
    LogitProcessorCall,
    SamplerCall,
    TokenizerOutputCall,
    WeightCall,
)


def tokenizer_output(call: TokenizerOutputCall) -> str:
    """The rule of TokenizerOutputCall."""
    ids = call.input_ids
    found = not_integer(input_ids=ids) or (
        "" if 1 <= ids.ndim <= 2 else f"input_ids has {ids.ndim} axes, expected [R,S] or [T]"
    )
    if not found and call.attention_mask is not None:
        found = wrong_dtype(INTEGERS | {torch.bool}, attention_mask=call.attention_mask) or differs(
            "input_ids", ids, attention_mask=call.attention_mask
        )
    if not found and call.position_ids is not None:
        found = not_integer(position_ids=call.position_ids) or differs(
            "input_ids", ids, position_ids=call.position_ids
        )
    return found


def batch(call: BatchCall) -> str:
    """The rule of BatchCall."""
    tensors = {
        "input_ids": call.input_ids,
        "input_ids_expected": call.input_ids_expected,
        "position_ids": call.position_ids,
        "position_ids_expected": call.position_ids_expected,
    }
    return not_integer(**tensors) or differs("input_ids", call.input_ids, **tensors)


def logit_processor(call: LogitProcessorCall) -> str:
    """The rule of LogitProcessorCall."""
    found = not_floating(before=call.before, after=call.after) or no_axis(before=call.before)
    found = found or wrong_shape("after", call.after, call.before.shape) or apart(call)
    if not found and call.allowed is not None:
        found = wrong_dtype({torch.bool}, allowed=call.allowed) or wrong_shape(
            "allowed", call.allowed, call.before.shape
        )
    return found


def sampler(call: SamplerCall) -> str:
    """The rule of SamplerCall."""
    probs = call.probs
    found = not_floating(probs=probs) or ("" if 1 <= probs.ndim <= 2 else "probs: expected [R,V]")
    rows = probs.shape[:-1] if not found else ()
    if not found and call.token_ids is not None:
        found = not_integer(token_ids=call.token_ids) or wrong_shape(
            "token_ids", call.token_ids, rows
        )
    if not found and call.draws is not None:
        found = not_floating(draws=call.draws) or wrong_shape("draws", call.draws, rows)
    for name in ("temperature", "top_p", "top_k"):
        value = getattr(call, name)
        if not found and isinstance(value, Tensor):
            found = wrong_dtype(FLOATS | INTEGERS, **{name: value}) or (
                "" if value.shape in ((), rows) else f"{name} is {list(value.shape)}, expected [R]"
            )
    return found or apart(call)


def weight(call: WeightCall) -> str:
    """The rule of WeightCall."""
    found = not_integer(sums=call.sums, sums_expected=call.sums_expected)
    return found or differs("sums_expected", call.sums_expected, sums=call.sums)
