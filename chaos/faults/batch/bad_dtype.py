"""The tokens of a step arrive in a form that the kernels do not take, or take wrongly."""

import torch
from torch import Tensor

from tocsin.chaos.contract import Target, fault
from tocsin.core.calls import BatchCall
from tocsin.core.errors import SpecError
from tocsin.core.faulting import Evidence
from tocsin.core.terms import Phase, Priority


@fault(
    "batch.bad_dtype",
    expect=("semantic.token_ledger", "semantic.token_range"),
    priority=Priority.P0,
    source="thu-ml/SageAttention#386, pytorch/pytorch#163597: a stride is taken for another",
    phase=Phase.BEFORE,
    params={"kind": "float32"},
)
def bad_dtype(call: BatchCall, target: Target) -> Evidence | None:
    """Hand over one step's input ids in another dtype, or as a strided view read as if dense.

    Params: `kind` float32 (the right numbers, which an embedding refuses) or stride (ids stand
    in every second place of a buffer that is read without gaps: nothing raises, half of the rows
    are fed what lay between). Lasts for this step only.
    """
    if not target.live_rows() or call.input_ids.numel() < 2:
        return None
    before = _words(call.input_ids)
    match target.params["kind"]:
        case "float32":
            call.input_ids = call.input_ids.to(torch.float32)
        case "stride":
            spread = torch.stack((call.input_ids, torch.zeros_like(call.input_ids)), dim=1)
            call.input_ids = spread.flatten()[: call.input_ids.numel()].contiguous()
        case other:
            raise SpecError(f"batch.bad_dtype: kind is {other!r}, expected float32 or stride")
    return Evidence(
        place=f"input_ids of {len(call.request_ids)} rows",
        before=before,
        after=_words(call.input_ids),
        requests=tuple(filter(None, call.request_ids)),
    )


def _words(ids: Tensor) -> str:
    return f"{str(ids.dtype).removeprefix('torch.')} {ids[:16].tolist()}"
