"""Whether every new key and value is written to its own place, and nothing to another's."""

import torch
from torch import Tensor

from tocsin.checker.contract import check
from tocsin.checker.ratios import alarm, nothing, violated
from tocsin.checker.rows import rows_of_tokens
from tocsin.checker.structure import unready
from tocsin.core.calls import KVUpdateCall
from tocsin.core.terms import Priority, Profile


@check(
    "state.slot_mapping",
    priority=Priority.P0,
    impact="a token's keys and values overwrite another's: both requests go on with a wrong past",
    source="Dao-AILab/flash-attention#772, microsoft/onnxruntime-genai#2583",
    profile=Profile.GUARD,
    remedy="rebuild slot mapping and block table from the host's copy; recompute the rows",
    crosses_requests=True,
)
def slot_mapping(call: KVUpdateCall) -> Tensor:
    """Infinity where a slot is out of range, used twice, off the block table or not the row's.

    A slot of -1 is padding: legal before or after the tokens of a row, never among them, and
    never for all tokens of a row that has a length. The metadata is one for all depths, so only
    the first depth is looked at.

    Args:
        call: slots_T, block_table [R,n], positions_T, seq_lens_R; owners_P where known: a page
            that is shared or free (-1) may not be written either.

    Returns:
        ratio_T, float32, 0 or infinity.
    """
    if call.depth:
        return nothing(call)
    if (early := unready(call, call.slot_mapping)) is not None:
        return early
    pages, size = call.key_cache.shape[:2]
    rows, blocks = call.block_table.shape
    if pages * size * rows * blocks == 0:
        return alarm(call)
    slots, positions = call.slot_mapping.to(torch.int64), call.position_ids.to(torch.int64)
    row = rows_of_tokens(call)
    padding = slots == -1
    bad = (slots < -1) | (slots >= pages * size) | (row < 0) | (row >= rows)
    bad = bad | (positions < 0) | (positions >= blocks * size)
    row, positions = row.clamp(0, rows - 1), positions.clamp(0, blocks * size - 1)
    page = call.block_table.to(torch.int64)[row, positions // size]
    bad = bad | (page < 0) | (slots != page * size + positions % size) | _used_twice(slots)
    if call.owners is not None:
        bad = bad | (call.owners[(slots // size).clamp(0, pages - 1)] != row)
    return violated((bad & ~padding) | _misplaced_padding(call, padding, row))


def _used_twice(slots: Tensor) -> Tensor:
    """[T]: another token has the same slot."""
    ordered, order = slots.sort()
    twice = ordered.diff() == 0
    bad = torch.zeros_like(slots, dtype=torch.bool)
    bad[order[1:]] |= twice
    bad[order[:-1]] |= twice
    return bad


def _misplaced_padding(call: KVUpdateCall, padding: Tensor, row: Tensor) -> Tensor:
    """[T]: padding between tokens of its row, or instead of all of them."""
    rows = call.block_table.shape[0]
    member = row[:, None] == torch.arange(rows, device=row.device)  # [T,R]
    real = member & ~padding[:, None]
    before = real.cumsum(dim=0)
    total = before[-1]
    inside = (before > 0) & (before < total)
    lost = (total == 0) & (call.seq_lens > 0)
    return (member & padding[:, None] & (inside | lost)).any(dim=1)
