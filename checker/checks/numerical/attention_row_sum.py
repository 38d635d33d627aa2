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
    source="FLASH-ABFT, arXiv:2507.16676: sum_d o = sum_j p_j (sum_d V_jd); scores recomputed",
    remedy="run the step on the fallback backend and compare",
)
def attention_row_sum(
    call: AttentionCall, limit_ulp: float = 4.0, scores_max: float = 4e6
) -> Tensor:
    """Residual of sum_d o = sum_j p_j sum_d V_jd with p recomputed in float32, over its limit.

    Also: the recomputed weights sum to 1, and a returned lse is that of the scores. The limit
    allows the roundings of the output, of the weights and of the scores (eager attention rounds
    these to the dtype); its scale is the mixed values' own, which the output cannot inflate.

    Args:
        call: q_RHSE, k_RKLE, v_RKLE, mask, output_RHSE and possibly lse_RHS.
        limit_ulp: allowed distance, in unit roundoffs of the output's dtype.
        scores_max: largest number of scores recomputed a call; beyond it evenly spread queries.

    Returns:
        ratio_RS, float32, the largest over heads; ratio_R where only some queries were looked at;
        0 for a query without allowed keys.
    """
    if call.output is None:
        return nothing(call)
    if (early := unready(call, call.q, call.v, call.output)) is not None:
        return early
    rows, heads, positions, size = call.q.shape
    kv_heads, keys = call.k.shape[1], call.k.shape[2]
    at = _spots(positions, max(1, int(scores_max) // (rows * heads * keys)), call.q.device)
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
    ratio = ratio.amax(dim=(1, 2))
    return (ratio.reshape(-1) if at is None else ratio.amax(dim=-1)).to(torch.float32)


def _spots(positions: int, count: int, device: torch.device) -> Tensor | None:
    """Evenly spread query positions, the last one among them; None: all."""
    if positions <= count:
        return None
    if count == 1:
        return torch.full((1,), positions - 1, dtype=torch.int64, device=device)
    return torch.linspace(0, positions - 1, count, device=device).round().to(torch.int64)


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
