"""Whether positions are those of the committed tokens, counted by the ledger."""

import torch
from torch import Tensor

from tocsin.checker.contract import check
from tocsin.checker.ratios import alarm, nothing, violated
from tocsin.checker.rows import rows_of_tokens
from tocsin.checker.structure import unready
from tocsin.core.calls import BatchCall, KVUpdateCall
from tocsin.core.terms import Phase, Priority, Profile


@check(
    "state.position_ledger",
    priority=Priority.P0,
    impact="tokens are placed at wrong distances: the model answers another text than was sent",
    catches=("batch.ragged_swap", "kv.off_by_one_pos"),
    source="unslothai/unsloth#3699, huggingface/transformers#48161: positions under padding",
    profile=Profile.GUARD,
    phase=Phase.BEFORE,
    remedy="take positions from the ledger of committed tokens, never from a tensor's length",
)
def position_ledger(call: BatchCall | KVUpdateCall) -> Tensor:
    """Infinity where a position is not the ledger's.

    For a batch the ledger's positions come along. For an update they follow: of the n real tokens
    of a row (slot >= 0) the k-th stands at length - n + k; padding, on either side, does not
    count. The metadata is one for all depths, so only the first depth is looked at.

    Args:
        call: positions_T with the ledger's, or with seq_lens_R as they are after the update.

    Returns:
        ratio_T, float32, 0 or infinity.
    """
    if isinstance(call, BatchCall):
        if (early := unready(call, call.position_ids)) is not None:
            return early
        return violated((call.position_ids != call.position_ids_expected).reshape(-1))
    if call.depth:
        return nothing(call)
    if (early := unready(call, call.position_ids)) is not None:
        return early
    rows = call.block_table.shape[0]
    if rows == 0:
        return alarm(call)
    row = rows_of_tokens(call)
    unknown = (row < 0) | (row >= rows)
    row = row.clamp(0, rows - 1)
    real = call.slot_mapping >= 0
    counted = (row[:, None] == torch.arange(rows, device=row.device)) & real[:, None]  # [T,R]
    nth = counted.cumsum(dim=0).gather(1, row[:, None])[:, 0] - 1
    expected = (call.seq_lens.to(torch.int64) - counted.sum(dim=0))[row] + nth
    return violated(real & (unknown | (call.position_ids != expected)))
