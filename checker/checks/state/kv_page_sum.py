"""Whether KV pages still hold what was written into them."""

import torch
from torch import Tensor

from tocsin.checker.contract import check
from tocsin.checker.ratios import alarm, nothing, violated
from tocsin.checker.rounding import words
from tocsin.checker.rows import entries_to_rows
from tocsin.checker.structure import unready
from tocsin.core.calls import KVReadCall, KVUpdateCall
from tocsin.core.terms import Phase, Priority, Profile


@check(
    "state.kv_page_sum",
    priority=Priority.P0,
    impact="a request goes on from keys and values that are not its own: fluent, wrong, silent",
    catches=("kv.bitflip", "kv.poisoned_page", "kv.write_race"),
    source="arXiv:2604.17249: 13 of 16 flipped bits of a KV block give coherent but other text",
    profile=Profile.GUARD,
    phase=Phase.BEFORE,
    remedy="quarantine the page and recompute the requests that hold it",
)
def kv_page_sum(call: KVReadCall | KVUpdateCall) -> Tensor:
    """Infinity where a page's 64-bit sums differ from those recorded when it was written.

    After an update, instead: where the slot that a token was written to does not hold the bits
    of its new key and value.

    Args:
        call: the entries of the block tables before a step reads them, or an update.

    Returns:
        ratio_R for a read, ratio_T for an update, float32, 0 or infinity.
    """
    if isinstance(call, KVUpdateCall):
        return _written(call)
    if (early := unready(call, call.pages)) is not None:
        return early
    changed = (call.sums != call.sums_expected).reshape(call.pages.numel(), -1).any(dim=1)
    return entries_to_rows(violated(changed), call)


def _written(call: KVUpdateCall) -> Tensor:
    if (early := unready(call, call.new_key)) is not None:
        return early
    pages, size = call.key_cache.shape[:2]
    if pages * size == 0:
        return alarm(call)
    if call.new_key.shape[1:].numel() == 0:
        return nothing(call)
    slots = call.slot_mapping.to(torch.int64)
    real = slots != -1  # what else is negative is no padding
    beyond = (slots < -1) | (slots >= pages * size)
    slots = slots.clamp(0, pages * size - 1)
    bad = beyond
    for cache, new in ((call.key_cache, call.new_key), (call.value_cache, call.new_value)):
        held = cache[slots // size, slots % size]
        bad = bad | (words(held) != words(new.to(cache.dtype))).flatten(1).any(dim=1)
    return violated(bad & real)
