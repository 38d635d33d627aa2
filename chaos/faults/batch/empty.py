"""A step is launched without a single token."""

from tocsin.chaos.contract import Target, fault
from tocsin.core.calls import BatchCall
from tocsin.core.faulting import Evidence
from tocsin.core.terms import Phase, Priority


@fault(
    "batch.empty",
    expect=("semantic.token_ledger", "semantic.token_range"),
    priority=Priority.P0,
    source="vllm-project/vllm#7283, vllm-project/vllm#57719: a row without tokens kills the engine",
    phase=Phase.BEFORE,
)
def empty(call: BatchCall, target: Target) -> Evidence | None:
    """Let the tokens of one step be an empty tensor, while its rows wait for answers.

    Unchecked, the model raises on it and every request of the step ends with an error. Lasts for
    this step only.
    """
    if not target.live_rows() or call.input_ids.numel() == 0:
        return None
    before = str(list(call.input_ids.shape))
    call.input_ids = call.input_ids[:0]
    return Evidence(
        place=f"shape of input_ids for {len(call.request_ids)} rows",
        before=before,
        after=str(list(call.input_ids.shape)),
        requests=tuple(filter(None, call.request_ids)),
    )
