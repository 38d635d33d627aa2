"""Whether probabilities are probabilities, and the sampled token is one that they allow."""

import torch
from torch import Tensor

from tocsin.checker.contract import check
from tocsin.checker.ratios import alarm, over, violated
from tocsin.checker.rounding import unit_roundoff
from tocsin.checker.structure import unready
from tocsin.core.calls import SamplerCall
from tocsin.core.terms import Priority, Profile

# Below it logits / temperature overflows; 0 means greedy. A little less, for 1e-5 in float32.
_TEMPERATURE_MIN = 0.999e-5


@check(
    "semantic.sampler",
    priority=Priority.P0,
    impact="a token is released that the model did not choose",
    source="NVIDIA/TensorRT-LLM#2217, vllm-project/vllm#1623, flashinfer-ai/flashinfer#384",
    profile=Profile.GUARD,
    remedy="sample again from the same probabilities and the same draw",
)
def sampler(call: SamplerCall, sum_tolerance: float = 1e-3) -> Tensor:
    """Distance of a row's sum from 1 over its tolerance; infinity for a broken rule.

    Rules, each in positive form, so that NaN breaks them: probabilities are not negative; the
    sampled id is in range with a probability above 0, the largest one under temperature 0;
    temperature is 0 or at least 1e-5 and finite, 0 < top_p <= 1, top_k is -1 or in [1, V], and no
    more than top_k tokens are left, ties aside, unless the row is greedy.

    Args:
        call: probs [R,V] after all filters, token_ids_R, and the parameters, one for all or _R.
        sum_tolerance: allowed distance of the sum from 1, besides one roundoff of the dtype.

    Returns:
        ratio_R, float32.
    """
    if (early := unready(call)) is not None:
        return early
    if call.probs.shape[-1] == 0:
        return alarm(call)
    probs = call.probs.reshape(-1, call.probs.shape[-1])
    total = probs.sum(dim=-1, dtype=torch.float32)
    ratio = over(total - 1, sum_tolerance + unit_roundoff(probs.dtype))
    good = (probs >= 0).all(dim=-1) & _parameters(call, probs)
    if call.token_ids is not None:
        good = good & _token(call.token_ids.reshape(-1), probs, call.temperature)
    return torch.maximum(ratio, violated(~good))


def _token(ids: Tensor, probs: Tensor, temperature: float | Tensor | None) -> Tensor:
    """[R]: the id is in range, possible, and the likeliest one where sampling is greedy."""
    size = probs.shape[-1]
    inside = (ids >= 0) & (ids < size)
    chosen = probs.gather(1, ids.to(torch.int64).clamp(0, size - 1)[:, None])[:, 0]
    good = inside & (chosen > 0)
    if temperature is None:
        return good
    return good & ((chosen >= probs.amax(dim=-1)) | _values(temperature, probs).ne(0))


def _parameters(call: SamplerCall, probs: Tensor) -> Tensor:
    """[R]: temperature, top_p and top_k are within their ranges and top_k was applied."""
    good = torch.ones(probs.shape[0], dtype=torch.bool, device=probs.device)
    if call.temperature is not None:
        value = _values(call.temperature, probs)
        good = good & ((value == 0) | ((value >= _TEMPERATURE_MIN) & (value < torch.inf)))
    if call.top_p is not None:
        value = _values(call.top_p, probs)
        good = good & (value > 0) & (value <= 1)
    if call.top_k is not None:
        value = _values(call.top_k, probs)
        unlimited = value == -1
        lowest = torch.where(probs > 0, probs, torch.inf).amin(dim=-1, keepdim=True)
        above = (probs > lowest).sum(dim=-1)
        applied = above < value
        if call.temperature is not None:  # a greedy row has no use for its filters
            applied = applied | (_values(call.temperature, probs) == 0)
        in_range = (value >= 1) & (value <= probs.shape[-1])
        good = good & (unlimited | (in_range & applied))
    return good


def _values(value: float | Tensor, probs: Tensor) -> Tensor:
    """[R] float64 from one number or one a row."""
    if isinstance(value, Tensor):
        return value.to(torch.float64).reshape(-1).expand(probs.shape[0])
    return torch.full(probs.shape[:1], float(value), dtype=torch.float64, device=probs.device)
