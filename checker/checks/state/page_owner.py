"""Whether every page in a block table belongs to the request that reads it."""

import torch
from torch import Tensor

from tocsin.checker.contract import check
from tocsin.checker.ratios import violated
from tocsin.checker.rows import entries_to_rows
from tocsin.checker.structure import unready
from tocsin.core.calls import KVReadCall
from tocsin.core.terms import Phase, Priority, Profile

SHARED = -1
"""Owner of a page that the prefix index shares between requests."""


@check(
    "state.page_owner",
    priority=Priority.P0,
    impact="a request reads or overwrites another's context: answers leak between users",
    catches=("batch.ragged_swap", "kv.page_alias", "kv.stale_after_preempt", "kv.use_after_free"),
    source="ml-explore/mlx-lm#965, vllm-project/vllm#39146: a table row used by two requests",
    profile=Profile.GUARD,
    phase=Phase.BEFORE,
    remedy="rebuild the block table from the host's copy; recompute both requests",
    crosses_requests=True,
)
def page_owner(call: KVReadCall) -> Tensor:
    """Infinity where a page is neither its row's nor shared, or is in use twice though private.

    Args:
        call: one entry for each (row, page) in use.

    Returns:
        ratio_R, float32, 0 or infinity.
    """
    if (early := unready(call, call.pages)) is not None:
        return early
    shared = call.owners == SHARED
    foreign = (call.owners != call.owners_expected) & ~shared
    return entries_to_rows(violated(foreign | _used_twice(call, shared)), call)


def _used_twice(call: KVReadCall, shared: Tensor) -> Tensor:
    """[n]: the page stands in another entry too: of any row if private, of its own row if not."""
    rows, pages = call.entry_rows.to(torch.int64), call.pages.to(torch.int64)
    order = torch.argsort(pages * (rows.amax() + 1) + rows)
    same_page = pages[order].diff() == 0
    same_row = rows[order].diff() == 0
    private = ~shared[order]
    twice = same_page & (same_row | private[1:] | private[:-1])
    bad = torch.zeros_like(shared)
    bad[order[1:]] |= twice
    bad[order[:-1]] |= twice
    return bad
