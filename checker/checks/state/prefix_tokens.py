"""Whether pages taken from the prefix index hold the prefix of the request that takes them."""

from torch import Tensor

from tocsin.checker.contract import check
from tocsin.checker.ratios import nothing, violated
from tocsin.checker.rows import entries_to_rows
from tocsin.checker.structure import unready
from tocsin.core.calls import KVReadCall
from tocsin.core.terms import Phase, Priority, Profile


@check(
    "state.prefix_tokens",
    priority=Priority.P0,
    impact="a request goes on from another prompt's context: it answers a question nobody asked it",
    catches=("kv.prefix_hash_collision",),
    source="openvinotoolkit/openvino.genai#3722: a hash collision reuses the wrong page, silently",
    profile=Profile.GUARD,
    phase=Phase.BEFORE,
    remedy="drop the hit from the prefix index; recompute the request from its own tokens",
    crosses_requests=True,
)
def prefix_tokens(call: KVReadCall) -> Tensor:
    """Infinity where a page of the prefix index was written with other tokens than the row's own.

    All tokens up to the end of the page are compared, not only the page's own: keys and values
    depend on everything before them.

    Args:
        call: one entry for each (row, page) in use; with the prefixes in the first step of a
            request that took pages from the prefix index.

    Returns:
        ratio_R, float32, 0 or infinity; nothing to check in any other step.
    """
    prefixes, expected = call.prefixes, call.prefixes_expected
    if prefixes is None or expected is None:
        return nothing(call)
    if (early := unready(call, call.pages)) is not None:
        return early
    return entries_to_rows(violated((prefixes != expected).any(-1)), call)
