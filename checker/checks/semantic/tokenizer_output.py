"""Whether a tokenizer's output is one that a model can read: mask, padding, positions, length."""

import torch
from torch import Tensor

from tocsin.checker.contract import check
from tocsin.checker.ratios import violated
from tocsin.checker.structure import unready
from tocsin.core.calls import TokenizerOutputCall
from tocsin.core.terms import Priority, Profile


@check(
    "semantic.tokenizer_output",
    priority=Priority.P0,
    impact="the model reads another prompt than the user wrote; 83 % of such faults start here",
    source="huggingface/transformers#48161, unslothai/unsloth#3699, deepspeedai/DeepSpeed#3960",
    profile=Profile.GUARD,
    remedy="pass the tokenizer's own attention_mask on and derive positions from it",
)
def tokenizer_output(call: TokenizerOutputCall) -> Tensor:
    """Infinity for a row whose mask, positions or length do not fit its tokens.

    The mask is 0 or 1 with padding on one side only. Positions count the real tokens from 0 on,
    whatever the padding holds, so a left-padded row is right as it is. At most max_length tokens
    of a row are real. An empty batch, and a row without real tokens, are defined: no alarm.

    Args:
        call: input_ids [R,S] or [S]; attention_mask and position_ids alike.

    Returns:
        ratio_R, float32, 0 or infinity.
    """
    if (early := unready(call, call.input_ids)) is not None:
        return early
    shape = (-1, call.input_ids.shape[-1])
    mask = call.attention_mask
    ones = torch.ones_like(call.input_ids) if mask is None else mask.to(torch.int64)
    ones = ones.reshape(shape)
    real = ones == 1
    bad = (~real & (ones != 0)).any(dim=1) | _has_hole(real)
    if call.position_ids is not None:
        expected = real.cumsum(dim=1) - 1
        bad = bad | (real & (call.position_ids.reshape(shape) != expected)).any(dim=1)
    if call.max_length is not None:
        bad = bad | (real.sum(dim=1) > call.max_length)
    return violated(bad)


def _has_hole(real: Tensor) -> Tensor:
    """[R]: padding between real tokens, or on both sides of them."""
    edges = real.to(torch.int8).diff(dim=1)
    return edges.ne(0).sum(dim=1) > 1
