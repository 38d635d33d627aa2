"""Whether the largest logit is what the hidden state and its row of the head's weight give."""

import torch
from torch import Tensor

from tocsin.checker.contract import check
from tocsin.checker.ratios import bounded, nothing, over, scale_of
from tocsin.checker.rounding import U32, norm, smallest_step, unit_roundoff
from tocsin.checker.structure import unready
from tocsin.core.calls import LogitsCall
from tocsin.core.terms import Priority, Profile


@check(
    "numerical.logits_winner",
    priority=Priority.P0,
    impact="a token wins that the model did not choose: the answer takes another turn",
    catches=("logits.bitflip", "logits.top1_swap"),
    source="measured: one product a row; blocks and winner caught 100 % of lm_head flips",
    profile=Profile.GUARD,
    remedy="run the step again; if it repeats, verify the tiles of the head's weight",
)
def logits_winner(call: LogitsCall, limit_ulp: float = 4.0, accumulation: float = 2.0) -> Tensor:
    """Distance of the winning logit from h · w recomputed in float32, over rule R's limit.

    Also, where the sums of the weight's rows were kept: the winner's row still has its own. The
    output widens no limit: its size counts up to |h| |w| only, and |w| up to the trusted maximum.
    What lowers the true winner is not seen here but in its block, by linear_checksum.

    Args:
        call: logits [...,V], hidden [...,D], weight_VD; weight_row_sums_V and weight_norm_max as
            taken when the weight was known good.
        limit_ulp: allowed distance, in unit roundoffs of the logits' dtype.
        accumulation: allowed float32 roundoffs of |h| |w|, times sqrt(D).

    Returns:
        ratio_T, float32; nothing without hidden state or weight.
    """
    if call.hidden is None or call.weight is None:
        return nothing(call)
    if (early := unready(call, call.logits, call.hidden)) is not None:
        return early
    logits = call.logits.reshape(-1, call.logits.shape[-1])
    hidden = call.hidden.reshape(logits.shape[0], -1).to(torch.float32)
    top, winner = logits.max(dim=-1)  # NaN counts as the largest
    row = call.weight[winner].to(torch.float32)
    exact = (hidden * row).sum(dim=-1)
    length = norm(row)
    if call.weight_norm_max is not None:
        slack = 1 + 4 * unit_roundoff(call.weight.dtype)
        length = bounded(length, scale_of(call.weight_norm_max).reshape(()) * slack)
    share = (accumulation * hidden.shape[-1] ** 0.5 + 4) * U32
    reach = norm(hidden) * length
    rounded = exact.abs()
    if call.softcap is not None:
        exact = torch.tanh(exact / call.softcap) * call.softcap
        rounded = rounded + exact.abs()  # the product was rounded, then the cap of it
    limit = reach * share + smallest_step(call.logits.dtype)
    limit = limit + bounded(rounded, reach * 2) * (limit_ulp * unit_roundoff(call.logits.dtype))
    ratio = over(top.to(torch.float32) - exact, limit)
    if call.weight_row_sums is None:
        return ratio
    off = row.sum(dim=-1) - call.weight_row_sums[winner].to(torch.float32)
    kept = length * ((accumulation + hidden.shape[-1] ** 0.5) * U32) + smallest_step(torch.float32)
    return torch.maximum(ratio, over(off, kept))
