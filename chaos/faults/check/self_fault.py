"""A check raises instead of answering."""

import torch

from tocsin.chaos.contract import Target, fault
from tocsin.core.calls import BatchCall
from tocsin.core.faulting import Evidence
from tocsin.core.terms import Phase, Priority


@fault(
    "check.self_fault",
    expect=("service.check_error",),
    priority=Priority.P1,
    source="ray-project/ray#61263, vllm-project/vllm#16259: the probe fails, not what it watches",
    phase=Phase.BEFORE,
)
def self_fault(call: BatchCall, target: Target) -> Evidence | None:
    """Put what only a check reads of one step, the ledger's tokens, where it cannot be read.

    The step itself is right. The check must be counted as broken and left out of this step, an
    event must say so, all others must go on, and no answer may change. Lasts for this step only.
    """
    if not target.live_rows():
        return None
    before = str(call.input_ids_expected.device)
    call.input_ids_expected = torch.empty_like(call.input_ids_expected, device="meta")
    return Evidence(
        place=f"input_ids_expected of {len(call.request_ids)} rows, the device that holds it",
        before=before,
        after=str(call.input_ids_expected.device),
        requests=tuple(filter(None, call.request_ids)),
    )
