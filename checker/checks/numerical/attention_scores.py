"""Whether the keys that attention reads are those that were written: all of them, and no other."""

import torch
from torch import Tensor

from tocsin.checker.contract import check
from tocsin.checker.masks import allowed_keys, by_kv_head
from tocsin.checker.ratios import nothing, over, scale_of
from tocsin.checker.rounding import U32, norm, smallest_step
from tocsin.checker.structure import unready
from tocsin.core.calls import AttentionCall
from tocsin.core.terms import Priority


@check(
    "numerical.attention_scores",
    priority=Priority.P0,
    impact="a token attends to keys that are not its past: the answer changes without a word",
    catches=("attn.workspace_clobber",),
    source="ABFT on QK^T: sum_j q · k_j = q · sum_j k_j, with the sum kept from when k was written",
    remedy="verify the pages of the row; recompute the request from its tokens",
)
def attention_scores(call: AttentionCall, roundings: float = 16.0, per_key: float = 4.0) -> Tensor:
    """Residual of sum_j s_j = q · (sum of the keys as written), over its limit.

    Sees what a kernel's inputs hide from every check that recomputes with them: a key that changed
    in its page or on the way to the kernel, a key page of another request, a length or a mask that
    leaves a token out or lets one in. It does not see a kernel's own scores, which no kernel shows:
    what these do to the output belongs to attention_row_sum. Scale and sums are those of the
    write, so that no fault in a page can widen the limit.

    Args:
        call: q_RH1E, k_RKLE, the mask, key_sums_RKE and key_reach_RK.
        roundings: allowed roundoffs of float32 of a score, independent of each other.
        per_key: and such as all scores share, where keys repeat.

    Returns:
        ratio_R, float32, the largest over heads.
    """
    if call.key_sums is None or call.key_reach is None:
        return nothing(call)
    if (early := unready(call, call.q, call.k)) is not None:
        return early
    keys, kv_heads = call.k.shape[2], call.k.shape[1]
    factor = call.q.shape[-1] ** -0.5 if call.scale is None else call.scale
    q = by_kv_head(call.q[:, :, 0].to(torch.float32) * factor, kv_heads)  # [R,K,G,E]
    scores = q @ call.k.to(torch.float32).transpose(-1, -2)  # [R,K,G,L]
    if (allowed := allowed_keys(call)) is not None:
        # A row without keys keeps none; NaN behind the mask is not this check's.
        hidden = ~allowed.reshape((1,) * (4 - allowed.ndim) + tuple(allowed.shape))[:, :, 0]
        hidden = hidden[:, :, None] if hidden.shape[1] == 1 else by_kv_head(hidden, kv_heads)
        scores = scores.masked_fill(hidden, 0.0)
    wide = q.to(torch.float64)
    expected = (wide * call.key_sums[:, :, None]).sum(dim=-1)
    residual = scores.sum(dim=-1, dtype=torch.float64) - expected
    share = U32 * (roundings * keys**0.5 + per_key * keys)
    limit = norm(q) * scale_of(call.key_reach)[..., None] * share + smallest_step(torch.float32)
    return over(residual, limit).amax(dim=(1, 2))
