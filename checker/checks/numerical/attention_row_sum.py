"""Whether the features of an attention output add up to the weighted sums of its values."""

import torch
from torch import Tensor

from tocsin.checker.contract import check
from tocsin.checker.masks import added_scores, allowed_keys, by_kv_head
from tocsin.checker.ratios import bounded, nothing, over
from tocsin.checker.rounding import U32, norm, smallest_step, unit_roundoff
from tocsin.checker.structure import unready
from tocsin.core.calls import AttentionCall
from tocsin.core.terms import Priority


@check(
    "numerical.attention_row_sum",
    priority=Priority.P0,
    impact="one token attends to the wrong past: the answer changes without a word",
    catches=(
        "attn.mask_shift",
        "attn.softmax_inf",
        "attn.workspace_clobber",
        "batch.mask_mismatch",
    ),
    source="FLASH-ABFT, arXiv:2507.16676: sum_d o = sum_j p_j (sum_d V_jd); scores recomputed",
    remedy="run the step on the fallback backend and compare",
)
def attention_row_sum(
    call: AttentionCall, limit_ulp: float = 4.0, scores_max: float = 64.0
) -> Tensor:
    """Residual of sum_d o = sum_j p_j sum_d V_jd with p recomputed in float32, over its limit.

    Also: the recomputed weights sum to 1, and a returned lse is that of the scores. The limit
    allows the roundings of the output, of the weights and of the scores (eager attention rounds
    these to the dtype); its scale is the mixed values' own, which the output cannot inflate.

    Every query of a decoding step is looked at, and every one of a prompt of up to `scores_max`
    tokens. To look at a longer one whole would cost half of what its attention costs: there, the
    last query is always among those looked at, for it makes the token, and the others are evenly
    spread from a place that the bits of the last query draw: another one for each layer and each
    prompt, the same one when a step is run again. Of the rest, attention_hull and finite see what
    leaves the values' hull; a change within it is seen for `scores_max` of as many queries as the
    row has keys. In C++ the sums of values are kept from one decoding step to the next; where they
    would alarm, the values are read again as they are (checker/native/source/attention_kept.h).

    Args:
        call: q_RHSE, k_RKLE, v_RKLE, mask, output_RHSE and possibly lse_RHS. With value_sums and
            value_norms, which were taken when the values were written, v is not read: a value that
            changed since, or another request's, is then seen too.
        limit_ulp: allowed distance, in unit roundoffs of the output's dtype.
        scores_max: largest number of scores recomputed for each query and head, on average over
            the queries; at least one query is looked at.

    Returns:
        ratio_RS, float32, the largest over heads; 0 for a query without allowed keys and for one
        that was not looked at.
    """
    if call.output is None:
        return nothing(call)
    if (early := unready(call, call.q, call.v, call.output)) is not None:
        return early
    rows, _, positions, size = call.q.shape
    kv_heads, keys = call.k.shape[1], call.k.shape[2]
    at = _spots(call.q, max(1, int(scores_max * positions / keys)))
    scores = _scores(call, at)  # [R,K,G,S,L]
    allowed = _picked(allowed_keys(call), at, kv_heads)
    magnitude = scores.abs()
    if allowed is not None:
        hidden = ~allowed
        scores, magnitude = scores.masked_fill(hidden, -torch.inf), magnitude.masked_fill(hidden, 0)
    weights = scores.softmax(dim=-1)
    mixed = _mix(weights, call, allowed)  # [R,K,G,S,3]: of sum V, of its square, of |V|²
    total = weights.sum(dim=-1)
    output = by_kv_head(_pick(call.output, at), kv_heads)
    residual = output.sum(dim=-1, dtype=torch.float32) - mixed[..., 0]
    roundoff = unit_roundoff(call.output.dtype)
    scale = _scale(output, mixed)
    spread = (mixed[..., 1] - mixed[..., 0].square()).clamp_min(0.0).sqrt()
    shift = 1 + magnitude.amax(
        dim=-1
    )  # a score is off by its own roundings, its weight by that factor
    rounded = 3 if call.softcap is None else 10  # roundings of a score in eager attention
    limit = roundoff * (limit_ulp * scale + mixed[..., 0].abs() + rounded * shift * spread)
    limit = limit + U32 * (3 * (size + keys) ** 0.5 * scale + 12 * shift * spread)
    limit = limit + 4 * size**0.5 * smallest_step(call.output.dtype)
    ratio = torch.maximum(over(residual, limit), over(total - 1, 4 * keys**0.5 * U32 + 8 * U32))
    if call.lse is not None:
        lse = by_kv_head(_pick(call.lse, at), kv_heads)
        off = lse.to(torch.float32) - scores.logsumexp(dim=-1)
        ratio = torch.maximum(ratio, over(off, (16 * U32 + rounded * roundoff) * shift))
    if allowed is not None:
        ratio = torch.where(allowed.any(dim=-1), ratio, 0.0)
    ratio = ratio.amax(dim=(1, 2)).to(torch.float32)
    if at is not None:
        ratio = ratio.new_zeros(rows, positions).index_copy(1, at, ratio)
    return ratio.reshape(-1)


def _spots(q: Tensor, count: int) -> Tensor | None:
    """[count] query positions, the last one among them; None: all of q_RHSE's."""
    positions, size = q.shape[2], q.shape[3]
    if positions <= count:
        return None
    last = torch.full((1,), positions - 1, dtype=torch.int64, device=q.device)
    if count == 1:
        return last
    words = q[0, 0, -1].contiguous().view(torch.int32 if q.element_size() == 4 else torch.int16)
    factors = 2 * torch.arange(size, device=q.device) + 1
    drawn = (words.to(torch.int64) * factors).sum() & 1023
    start = torch.arange(count - 1, dtype=torch.float64, device=q.device) + drawn / 1024.0
    return torch.cat(((start * (positions - 1) / (count - 1)).floor().to(torch.int64), last))


def _pick(tensor_RHSX: Tensor, at: Tensor | None) -> Tensor:
    return tensor_RHSX if at is None else tensor_RHSX.index_select(2, at)


def _picked(mask: Tensor | None, at: Tensor | None, kv_heads: int) -> Tensor | None:
    """A mask broadcastable to [R,H,S,L] as one to [R,K,G,S,L], for the picked queries."""
    if mask is None:
        return None
    mask = mask.reshape((1,) * (4 - mask.ndim) + tuple(mask.shape))
    if at is not None and mask.shape[2] > 1:
        mask = mask.index_select(2, at)
    return mask[:, :, None] if mask.shape[1] == 1 else by_kv_head(mask, kv_heads)


def _scores(call: AttentionCall, at: Tensor | None) -> Tensor:
    """[R,K,G,S,L] float32: scaled, capped and with the additive mask."""
    kv_heads = call.k.shape[1]
    q = by_kv_head(_pick(call.q, at).to(torch.float32), kv_heads)
    scale = call.q.shape[-1] ** -0.5 if call.scale is None else call.scale
    flat = (q * scale).flatten(2, 3) @ call.k.to(torch.float32).transpose(-1, -2)
    scores = flat.reshape(*q.shape[:4], -1)
    if call.softcap is not None:
        scores = torch.tanh(scores / call.softcap) * call.softcap
    added = _picked(added_scores(call), at, kv_heads)
    return scores if added is None else scores + added


def _mix(weights: Tensor, call: AttentionCall, allowed: Tensor | None) -> Tensor:
    """[R,K,G,S,3]: what the weights make of sum_d V, its square, and |V|² of each key."""
    if call.value_sums is not None and call.value_norms is not None:
        sums, lengths = call.value_sums, call.value_norms
    else:
        values = call.v.to(torch.float32)
        sums, lengths = values.sum(dim=-1), norm(values)
    if allowed is not None:
        # NaN behind the mask is legal in a kernel that skips it; one that does not shows it in o.
        hidden = ~allowed.any(dim=-2).any(dim=2)  # [R|1,K|1,L]
        sums, lengths = sums.masked_fill(hidden, 0.0), lengths.masked_fill(hidden, 0.0)
    columns = torch.stack((sums, sums.square(), lengths.square()), dim=-2)  # [R,K,3,L]
    flat = weights.flatten(2, 3) @ columns.transpose(-1, -2)
    return flat.reshape(*weights.shape[:4], 3)


def _scale(output: Tensor, mixed: Tensor) -> Tensor:
    """Norm of an output, at most that of the values it mixes; infinite where it is no number."""
    bound = mixed[..., 2].sqrt() * (1 + 2.0**-6)
    return bounded(norm(output), bound)
