"""The mask of a launch does not fit the tokens that it is meant for."""

from torch import Tensor

from tocsin.chaos.contract import Target, fault
from tocsin.chaos.places import chosen_depth, masked_rows
from tocsin.core.calls import AttentionCall
from tocsin.core.errors import SpecError
from tocsin.core.faulting import Evidence
from tocsin.core.terms import Phase, Priority


@fault(
    "batch.mask_mismatch",
    expect=("numerical.attention_row_sum", "service.backend_error"),
    priority=Priority.P0,
    source="deepspeedai/DeepSpeed#3960, huggingface/transformers#30400: padding masked wrongly",
    phase=Phase.BEFORE,
    params={"kind": "holes", "depth": None},
)
def mask_mismatch(call: AttentionCall, target: Target) -> Evidence | None:
    """Let one launch read a mask with holes among a row's own keys, or one that is too short.

    Params: `kind` holes (every second key of one decoding row is hidden, the newest is not) or
    length (the mask of all rows ends one key early, and the kernel refuses it); `depth` None
    draws. Lasts for this launch only; the call's own mask stays right.
    """
    if call.depth != chosen_depth(target) or call.mask is None:
        return None
    lengths = masked_rows(call, target)
    rows = [row for row, length in lengths.items() if length >= 2]
    if not rows:
        return None
    row = rows[target.below(len(rows), "row")]
    before = _words(call.mask, row)
    touched = tuple(filter(None, target.request_ids))
    match target.params["kind"]:
        case "holes":
            mask = call.mask.clone()
            mask[row, ..., (lengths[row] - 2) % 2 : lengths[row] - 1 : 2] = False
            touched = (target.request_ids[row],)
        case "length":
            mask = call.mask[..., :-1]
        case other:
            raise SpecError(f"batch.mask_mismatch: kind is {other!r}, expected holes or length")
    call.mask = mask
    return Evidence(
        place=f"mask of row {row} at depth {call.depth}, as the kernel reads it",
        before=before,
        after=_words(mask, row),
        requests=touched,
    )


def _words(mask: Tensor, row: int) -> str:
    return f"{int(mask[row].sum())} of {mask.shape[-1]} keys"
