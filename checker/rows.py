"""Which row of a step a token or a page entry belongs to.

Axes: R rows · T tokens · n entries (row, page).
"""

import torch
from torch import Tensor

from tocsin.core.calls import KVReadCall, KVUpdateCall


def rows_of_tokens(call: KVUpdateCall) -> Tensor:
    """[T] int64 row of each new token: as given, or T/R tokens a row in order."""
    if call.token_rows is not None:
        return call.token_rows.to(torch.int64)
    tokens, rows = call.slot_mapping.shape[0], call.block_table.shape[0]
    return torch.arange(tokens, device=call.slot_mapping.device) // max(1, tokens // max(1, rows))


def entries_to_rows(ratio_n: Tensor, call: KVReadCall) -> Tensor:
    """[R] float32: the largest ratio of each row's entries; [n] when the rows are not known.

    An entry of a row that does not exist concerns everybody.
    """
    if not call.rows:
        return ratio_n
    rows = call.entry_rows.to(ratio_n.device, torch.int64)  # sums are compared where they are
    known = (rows >= 0) & (rows < call.rows)
    ratio = torch.where(known, ratio_n, torch.inf)
    by_row = torch.zeros(call.rows, dtype=torch.float32, device=ratio.device)
    by_row = by_row.scatter_reduce(0, rows.clamp(0, call.rows - 1), ratio, "amax")
    lost = torch.where(known.all(), 0.0, torch.inf)
    return torch.maximum(by_row, lost)
