"""Whether probabilities are probabilities, and the sampled token is one that they allow."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tocsin.checker import native
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
    more than top_k tokens are left, ties aside, unless the row is greedy. Where the draw is known,
    the token is the one at which the distribution function passes it.

    Args:
        call: probs [R,V] after all filters, token_ids_R, the draws_R, and the parameters, one for
            all or _R.
        sum_tolerance: allowed distance of the sum from 1, besides one roundoff of the dtype.

    Returns:
        ratio_R, float32.
    """
    if (early := unready(call)) is not None:
        return early
    if call.probs.shape[-1] == 0:
        return alarm(call)
    probs = call.probs.reshape(-1, call.probs.shape[-1])
    ids = None if call.token_ids is None else call.token_ids.reshape(-1).to(torch.int64)
    draws = None if call.draws is None or ids is None else call.draws.reshape(-1)
    facts = _facts(probs, ids, filtered=_may_filter(call.top_k), drawn=draws is not None)
    ratio = over(facts.total - 1, sum_tolerance + unit_roundoff(probs.dtype))
    good = facts.sound & _parameters(call, probs, facts.above)
    if ids is not None:
        good = good & _token(ids, probs, facts.most, call.temperature)
        if draws is not None:
            drawn = _drawn(ids, probs, draws, facts, sum_tolerance)
            if call.temperature is not None:
                drawn = drawn | (_values(call.temperature, probs) == 0)
            good = good & drawn
    return torch.maximum(ratio, violated(~good))


@dataclass(frozen=True, slots=True)
class _Facts:
    """What is asked of the probabilities of each row, all _R.

    Attributes:
        total: their sum, in float64 where there are draws.
        sound: none is negative, or no number.
        most: the largest.
        above: how many are larger than the lowest that is not 0; only where tokens may have been
            filtered.
        below: their sum before the token, float64; only where there are draws.
    """

    total: Tensor
    sound: Tensor
    most: Tensor
    above: Tensor | None = None
    below: Tensor | None = None


def _facts(probs: Tensor, ids: Tensor | None, *, filtered: bool, drawn: bool) -> _Facts:
    """Three fast passes over [R,V] for a choice without filter and draw; else one, or several."""
    readable = (filtered or drawn) and native.loaded()
    if readable and _is_plain(probs) and (ids is None or _is_plain(ids, torch.int64)):
        total, sound, most, above, below = torch.ops.tocsin.chances(probs, ids)
        return _Facts(total, sound > 0, most, above, below)
    # The smallest one says the same as all of them would, and NaN is the smallest.
    sound, most = probs.amin(dim=-1) >= 0, probs.amax(dim=-1)
    total = probs.sum(dim=-1, dtype=torch.float64 if drawn else torch.float32)
    above = below = None
    if filtered:
        lowest = torch.where(probs > 0, probs, torch.inf).amin(dim=-1, keepdim=True)
        above = (probs > lowest).sum(dim=-1)
    if drawn and ids is not None:
        before = torch.arange(probs.shape[-1], device=probs.device) < ids[:, None]
        below = torch.where(before, probs.to(torch.float64), 0.0).sum(dim=-1)
    return _Facts(total, sound, most, above, below)


def _is_plain(tensor: Tensor, dtype: torch.dtype = torch.float32) -> bool:
    """Whether the operator can read it."""
    return tensor.device.type == "cpu" and tensor.dtype is dtype and tensor.is_contiguous()


def _may_filter(top_k: float | Tensor | None) -> bool:
    """Whether some row has a limit; a tensor is not asked, for that would wait for its device."""
    return top_k is not None and (isinstance(top_k, Tensor) or top_k != -1)


def _token(ids: Tensor, probs: Tensor, most: Tensor, temperature: float | Tensor | None) -> Tensor:
    """[R]: the id is in range, possible, and the likeliest one where sampling is greedy."""
    size = probs.shape[-1]
    inside = (ids >= 0) & (ids < size)
    chosen = probs.gather(1, ids.clamp(0, size - 1)[:, None])[:, 0]
    good = inside & (chosen > 0)
    if temperature is None:
        return good
    return good & ((chosen >= most) | _values(temperature, probs).ne(0))


def _drawn(ids: Tensor, probs: Tensor, draws: Tensor, facts: _Facts, tolerance: float) -> Tensor:
    """[R]: the draw falls between the mass before the token and the mass up to it."""
    if facts.below is None:
        return torch.zeros_like(facts.sound)
    own = probs.gather(1, ids.clamp(0, probs.shape[-1] - 1)[:, None])[:, 0].to(torch.float64)
    point = draws.to(torch.float64) * facts.total
    slack = tolerance * 0.1 + unit_roundoff(probs.dtype)
    reached = (point >= facts.below - slack) & (point <= facts.below + own + slack)
    return reached & (draws >= 0) & (draws < 1)


def _parameters(call: SamplerCall, probs: Tensor, above: Tensor | None) -> Tensor:
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
        applied = torch.zeros_like(unlimited) if above is None else above < value
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
