"""Two rows of a batch are mapped to each other's request."""

import torch

from tocsin.chaos.contract import Target, fault
from tocsin.chaos.places import is_decode
from tocsin.core.calls import BatchCall
from tocsin.core.faulting import Evidence
from tocsin.core.terms import Phase, Priority


@fault(
    "batch.ragged_swap",
    expect=("semantic.token_ledger", "state.position_ledger", "state.page_owner"),
    priority=Priority.P0,
    source="vllm-project/vllm#1309, theroyallab/tabbyAPI#107: a row is served as another request",
    phase=Phase.BEFORE,
)
def ragged_swap(call: BatchCall, target: Target) -> Evidence | None:
    """Swap token, position and block table of two decoding rows, and leave their request ids.

    As when a batch is condensed and one array is forgotten: each request is handed what was
    computed from the other's context. Lasts for this step only.
    """
    rows = target.live_rows()
    if len(rows) < 2 or not is_decode(call):
        return None
    first = target.below(len(rows), "row")
    other = 1 + target.below(len(rows) - 1, "partner")
    pair = (rows[first], rows[(first + other) % len(rows)])
    before = _words(call, pair)
    turned = torch.tensor([pair[1], pair[0]])
    for tensor in (call.input_ids, call.position_ids, call.block_table):
        if tensor is not None:
            tensor[list(pair)] = tensor[turned]
    return Evidence(
        place=f"rows {pair[0]} and {pair[1]} of the batch",
        before=before,
        after=_words(call, pair),
        requests=tuple(target.request_ids[row] for row in pair),
    )


def _words(call: BatchCall, rows: tuple[int, int]) -> str:
    """What each row feeds in, for whom."""
    said = []
    for row in rows:
        pages = [] if call.block_table is None else call.block_table[row].tolist()
        said.append(
            f"{call.request_ids[row]}: token {int(call.input_ids[row])} at "
            f"{int(call.position_ids[row])}, pages {[page for page in pages if page >= 0]}"
        )
    return "; ".join(said)
