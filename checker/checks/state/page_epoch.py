"""Whether every page in a block table is of the allocation and place that the table means."""

from torch import Tensor

from tocsin.checker.contract import check
from tocsin.checker.ratios import violated
from tocsin.checker.rows import entries_to_rows
from tocsin.checker.structure import unready
from tocsin.core.calls import KVReadCall
from tocsin.core.terms import Phase, Priority, Profile


@check(
    "state.page_epoch",
    priority=Priority.P0,
    impact="a request goes on from a page that was freed and filled again: fluent, wrong, silent",
    catches=("kv.page_alias", "kv.stale_after_preempt", "kv.use_after_free"),
    source="vllm-project/vllm#52234, sgl-project/sglang#35049: a stale reference is followed",
    profile=Profile.GUARD,
    phase=Phase.BEFORE,
    remedy="rebuild the block table from the host's copy; recompute the request",
    crosses_requests=True,
)
def page_epoch(call: KVReadCall) -> Tensor:
    """Infinity where epoch, first position or length of a page is not what the table remembers.

    Args:
        call: one entry for each (row, page) in use.

    Returns:
        ratio_R, float32, 0 or infinity.
    """
    if (early := unready(call, call.pages)) is not None:
        return early
    stale = (
        (call.epochs != call.epochs_expected)
        | (call.first_positions != call.first_positions_expected)
        | (call.lengths != call.lengths_expected)
    )
    return entries_to_rows(violated(stale), call)
