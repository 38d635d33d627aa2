"""Whether attention's output lies between the smallest and the largest value that it may mix."""

import torch
from torch import Tensor

from tocsin.checker.contract import check
from tocsin.checker.masks import allowed_keys, by_kv_head
from tocsin.checker.ratios import nothing, over
from tocsin.checker.rounding import U32, smallest_step, unit_roundoff
from tocsin.checker.structure import unready
from tocsin.core.calls import AttentionCall
from tocsin.core.terms import Priority


@check(
    "numerical.attention_hull",
    priority=Priority.P1,
    impact="a query reads what is not its request's: stale, foreign or unwritten values",
    source="softmax weights are not negative and sum to 1; flashinfer-ai/flashinfer#3716",
)
def attention_hull(call: AttentionCall, limit_ulp: float = 4.0) -> Tensor:
    """How far an output leaves [min V, max V] over the keys of its row, in units of the limit.

    The hull is that of all keys which any query of the row may see: exact in decoding, wider in a
    prefill chunk. Weak alone, and complete: it looks at every number.

    Args:
        call: v_RKLE, the mask and output_RHSE. With value_low and value_high, which were taken
            when the values were written, v is not read.
        limit_ulp: allowed excess, in unit roundoffs of the output's dtype, of max |V|.

    Returns:
        ratio_RS, float32, the largest over heads and features; 0 for a query without a key.
    """
    if call.output is None:
        return nothing(call)
    if (early := unready(call, call.q, call.v, call.output)) is not None:
        return early
    rows, _, positions, _ = call.q.shape
    kv_heads = call.v.shape[1]
    allowed = allowed_keys(call)
    if call.value_low is not None and call.value_high is not None:
        low, high = call.value_low, call.value_high
    else:
        low, high = _hull(call, allowed)
    output = by_kv_head(call.output.to(torch.float32), kv_heads)  # [R,K,G,S,E]
    low, high = low[:, :, None, None], high[:, :, None, None]
    excess = torch.maximum(low - output, output - high).clamp_min(0.0)
    reach = torch.maximum(low.abs(), high.abs())
    share = limit_ulp * unit_roundoff(call.output.dtype) + 8 * U32
    ratio = over(excess, reach * share + smallest_step(call.output.dtype))
    ratio = ratio.amax(dim=-1).flatten(1, 2)  # [R,H,S]
    if allowed is not None:  # attention_mask says what a query without a key means
        live = allowed.any(dim=-1)
        ratio = torch.where(live.reshape((1,) * (3 - live.ndim) + live.shape), ratio, 0.0)
    return ratio.amax(dim=1).reshape(rows * positions).to(torch.float32)


_UNKNOWN = 1e30  # bounds nothing, and is small enough to stay a number


def _hull(call: AttentionCall, allowed: Tensor | None) -> tuple[Tensor, Tensor]:
    """Smallest and largest allowed value, [R,K,E] float32.

    A feature with a NaN among its values, hidden ones too, has no hull: a NaN that was mixed in
    shows in the output, and one behind the mask is legal in a kernel that skips it.
    """
    if allowed is None:
        return call.v.amin(dim=2).to(torch.float32), call.v.amax(dim=2).to(torch.float32)
    rows, heads = call.q.shape[0], call.q.shape[1]
    seen = allowed.reshape((1,) * (4 - allowed.ndim) + allowed.shape).any(dim=2)  # [R|1,H|1,L|1]
    if seen.shape[1] == heads and heads > 1:
        seen = by_kv_head(seen, call.v.shape[1]).any(dim=2)
    hidden = torch.zeros_like(seen, dtype=torch.float32).masked_fill_(~seen, torch.inf)
    hidden = hidden[..., None]
    # Adding a broadcast 0 or infinity is six times as fast on a CPU as torch.where.
    low = (call.v + hidden).amin(dim=2).nan_to_num(-_UNKNOWN, torch.inf, -torch.inf)
    high = (call.v - hidden).amax(dim=2).nan_to_num(_UNKNOWN, torch.inf, -torch.inf)
    return low.expand(rows, -1, -1), high.expand(rows, -1, -1)
