"""The attention kernel hides, or shows, other keys than the mask says."""

import torch
from torch import Tensor

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
    params={"keys": 1, "depth": None, "weight": 0.001},
)
def mask_shift(call: AttentionCall, target: Target) -> Evidence | None:
    """Misplace the end of one decoding row's keys in one launch; the call's own mask stays right.

    Params: `keys` hidden from the newest on (at least one key stays); a negative number shows as
    many beyond the end instead, which nobody has written for this row; `depth` None draws;
    `weight` from 0 to 1: what some head must give to these keys, for the end of a mask that nobody
    looks at changes no answer. Lasts for this launch only.
    """
    shift, weight = int(target.params["keys"]), float(target.params["weight"])
    if shift == 0:
        raise SpecError("attn.mask_shift: keys is 0, expected how many are hidden or shown")
    if not 0 <= weight <= 1:
        raise SpecError(f"attn.mask_shift: weight is {weight}, expected 0 to 1")
    if call.depth != chosen_depth(target) or call.mask is None:
        return None
    lengths = masked_rows(call, target)
    keys = torch.arange(call.mask.shape[-1], device=call.mask.device)
    rows = []
    for row, n in lengths.items():
        moved = (keys >= min(n, n - shift)) & (keys < max(n, n - shift))
        if 1 <= n - shift <= len(keys) and _most(call, row, keys < n, moved) >= weight:
            rows.append(row)
    if not rows:
        return None
    row = rows[target.below(len(rows), "row")]
    before, after = lengths[row], lengths[row] - shift
    mask = call.mask.clone()
    mask[row] = keys < after
    call.mask = mask
    return Evidence(
        place=f"mask of row {row} at depth {call.depth}, as the kernel reads it",
        before=f"{before} keys",
        after=f"{int(mask[row].sum())} keys",
        requests=(target.request_ids[row],),
    )


def _most(call: AttentionCall, row: int, shown_L: Tensor, moved_L: Tensor) -> float:
    """The largest share of a head's attention that the moved keys have where they are shown."""
    q_KGE = call.q[row, :, 0].float().reshape(call.k.shape[1], -1, call.k.shape[-1])
    scale = call.scale if call.scale is not None else call.q.shape[-1] ** -0.5
    scores_KGL = q_KGE @ call.k[row].float().mT * scale
    if call.softcap is not None:
        scores_KGL = call.softcap * torch.tanh(scores_KGL / call.softcap)
    weights_KGL = scores_KGL.masked_fill(~(shown_L | moved_L), -torch.inf).softmax(dim=-1)
    return float(weights_KGL[..., moved_L].sum(dim=-1).nan_to_num(1.0).amax())
