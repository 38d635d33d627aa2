"""A token id below the API is not what the request said, or not in the vocabulary at all."""

import torch

from tocsin.chaos.bits import Patch
from tocsin.chaos.contract import Target, fault
from tocsin.chaos.places import is_decode
from tocsin.core.calls import BatchCall
from tocsin.core.errors import SpecError
from tocsin.core.faulting import Evidence
from tocsin.core.terms import Phase, Priority


@fault(
    "batch.oob_token",
    expect=("semantic.token_range", "semantic.token_ledger"),
    priority=Priority.P0,
    source="vllm-project/vllm#46899: placeholders of -1 become input; tenstorrent/vllm#395",
    phase=Phase.BEFORE,
    params={"kind": "out_of_range"},
)
def oob_token(call: BatchCall, target: Target) -> Evidence | None:
    """Overwrite the token that one decoding row feeds in, after the API has checked it.

    Params: `kind` out_of_range (the first id beyond the vocabulary), placeholder (-1) or foreign
    (a valid id that is not the request's: nothing raises, the answer is another one).
    Lasts for this step only: the next one is built from the ledger.
    """
    rows = target.live_rows()
    if not rows or not is_decode(call):
        return None
    row = rows[target.below(len(rows), "row")]
    element = call.input_ids.view(-1)[row]
    match target.params["kind"]:
        case "out_of_range":
            token = call.vocab_size
        case "placeholder":
            token = -1
        case "foreign":
            token = (int(element) + 1 + target.below(call.vocab_size - 1, "token")) % (
                call.vocab_size
            )
        case other:
            raise SpecError(
                f"batch.oob_token: kind is {other!r}, expected out_of_range, placeholder or foreign"
            )
    patch = Patch.overwrite(element, torch.tensor(token))
    return Evidence(
        place=f"input_ids[{row}] of {call.vocab_size} ids",
        before=str(int(patch.before)),
        after=str(int(patch.after)),
        requests=(target.request_ids[row],),
    )
