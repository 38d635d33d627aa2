"""Whether every logit is within what the hidden state and the head's weight can give."""

import torch
from torch import Tensor

from tocsin.checker.contract import check
from tocsin.checker.ratios import over, scale_of
from tocsin.checker.rounding import U32, largest, norm, smallest_step, unit_roundoff
from tocsin.checker.structure import unready
from tocsin.core.calls import LogitsCall
from tocsin.core.terms import Priority, Profile


@check(
    "numerical.logits_bound",
    priority=Priority.P0,
    impact="a wrong token is sampled, and with NaN it is token 0 for the rest of the answer",
    catches=("logits.bitflip",),
    source="Cauchy-Schwarz: |h · w_j| <= |h| max |w_j|; vllm-project/vllm#13035",
    profile=Profile.GUARD,
)
def logits_bound(call: LogitsCall, limit: float = 1.0) -> Tensor:
    """Largest magnitude of a row's logits over the Cauchy-Schwarz bound, or over the soft cap.

    Without hidden state or weight only the range of the dtype is left as a bound.

    Args:
        call: logits [...,V]; hidden [...,D]; weight [V,D] or weight_norm_max of a trusted one.
        limit: share of the bound that may be reached; clean maxima are near 0.5.

    Returns:
        ratio_T, float32.
    """
    if (early := unready(call, call.logits)) is not None:
        return early
    logits = call.logits.reshape(-1, call.logits.shape[-1])
    magnitude = torch.maximum(logits.amax(dim=-1), -logits.amin(dim=-1)).to(torch.float32)
    # The sum over D may round up to sqrt(D) float32 roundoffs, the store once.
    slack = 1 + 4 * unit_roundoff(call.logits.dtype)
    weight_norm = _weight_norm(call)
    if call.softcap is not None:
        return over(magnitude, call.softcap * slack * limit)
    if call.hidden is None or weight_norm is None:
        return over(magnitude / min(largest(call.logits.dtype), largest(torch.float32)), limit)
    hidden = call.hidden.reshape(logits.shape[0], -1)
    slack = slack + 2 * hidden.shape[-1] ** 0.5 * U32
    bound = norm(hidden) * scale_of(weight_norm).reshape(()) * slack
    return over(magnitude, bound * limit + smallest_step(call.logits.dtype))


def _weight_norm(call: LogitsCall) -> Tensor | None:
    if call.weight_norm_max is not None or call.weight is None:
        return call.weight_norm_max
    return norm(call.weight).amax()
