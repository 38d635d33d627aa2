"""The attention kernel hides, or shows, other keys than the mask says."""

import torch

from tocsin.chaos.contract import Target, fault
from tocsin.chaos.places import chosen_depth, masked_rows
from tocsin.core.calls import AttentionCall
from tocsin.core.errors import SpecError
from tocsin.core.faulting import Evidence
from tocsin.core.terms import Phase, Priority


@fault(
    "attn.mask_shift",
    expect=("numerical.attention_row_sum",),
    priority=Priority.P0,
    source="pytorch/pytorch#103082, pytorch/pytorch#110144: the causal corner is misplaced",
    phase=Phase.BEFORE,
    params={"keys": 1, "depth": None},
)
def mask_shift(call: AttentionCall, target: Target) -> Evidence | None:
    """Misplace the end of one decoding row's keys in one launch; the call's own mask stays right.

    Params: `keys` hidden from the newest on (at least one key stays); a negative number shows as
    many beyond the end instead, which nobody has written for this row; `depth` None draws.
    Lasts for this launch only.
    """
    shift = int(target.params["keys"])
    if shift == 0:
        raise SpecError("attn.mask_shift: keys is 0, expected how many are hidden or shown")
    if call.depth != chosen_depth(target) or call.mask is None:
        return None
    lengths = masked_rows(call, target)
    rows = [row for row, n in lengths.items() if 1 <= n - shift <= call.mask.shape[-1]]
    if not rows:
        return None
    row = rows[target.below(len(rows), "row")]
    before, after = lengths[row], lengths[row] - shift
    mask = call.mask.clone()
    mask[row] = torch.arange(mask.shape[-1], device=mask.device) < after
    call.mask = mask
    return Evidence(
        place=f"mask of row {row} at depth {call.depth}, as the kernel reads it",
        before=f"{before} keys",
        after=f"{int(mask[row].sum())} keys",
        requests=(target.request_ids[row],),
    )
