"""The places that a fault can change, each with the code that changes it.

Axes: R rows · S positions a row · D features · H heads · L keys · E head size. A row is one trial:
nothing outside it is touched, and a weight's fault shows in the row's own output only.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tocsin.bench.campaign.words import Change, corrupt, corrupted
from tocsin.core.calls import LinearCall, RMSNormCall
from tocsin.core.draw import draw_below
from tocsin.core.errors import ContractError
from tocsin.core.terms import Operator


@dataclass(frozen=True, slots=True)
class Fault:
    """One trial's fault; all that it picks follows from its seed and key.

    Attributes:
        bits: stratum or fault model.
        row: of the batch, which is the trial.
        key: names the trial.
    """

    site: str
    bits: str
    row: int
    seed: int
    key: str

    def below(self, bound: int, name: str) -> int:
        """An integer in [0, bound) from the stream `name` of this fault."""
        return draw_below(bound, self.seed, self.key, name)


Inject = Callable[[Any, Fault], Change]
"""`(call or tensor, fault) -> change`: in place, the fault's row only."""


@dataclass(frozen=True, slots=True)
class Site:
    """A kind of place.

    Attributes:
        operator: at whose seam it is reached; None: `scores` and `probs` inside attention,
            `cos_sin` where the table is made, `kv_*` in the cache.
        suffix: how the names of its modules end.
        inject: changes the place.
        persistent: a stored value: wrong in every step from the fault's on, else in that one.
        word: dtype of the word that is changed; None: the model's.
    """

    id: str
    operator: Operator | None
    suffix: str
    inject: Inject
    persistent: bool = False
    word: torch.dtype | None = None


def _output(call: Any, fault: Fault) -> Change:
    """One feature of one token of an output [R,S,D]."""
    output: Tensor = call.output
    values = output[fault.row, fault.below(output.shape[1], "position")]
    return corrupt(values, fault.below(values.numel(), "element"), fault.bits, fault.below)


def _in_heads(tensor_RHSE: Tensor, fault: Fault) -> Change:
    """One feature of one head of one token."""
    head = fault.below(tensor_RHSE.shape[1], "head")
    values = tensor_RHSE[fault.row, head, fault.below(tensor_RHSE.shape[2], "position")]
    return corrupt(values, fault.below(values.numel(), "element"), fault.bits, fault.below)


def _head_output(call: Any, fault: Fault) -> Change:
    return _in_heads(call.output, fault)


def _rotated_q(call: Any, fault: Fault) -> Change:
    return _in_heads(call.q_out, fault)


def _rotated_k(call: Any, fault: Fault) -> Change:
    return _in_heads(call.k_out, fault)


def _over_keys(tensor_RHSL: Tensor, fault: Fault) -> Change:
    """One key of one query; keys that the causal mask hides are none."""
    heads, positions, keys = tensor_RHSL.shape[1:]
    position = fault.below(positions, "position")
    values = tensor_RHSL[fault.row, fault.below(heads, "head"), position]
    visible = keys - positions + position + 1
    return corrupt(values[:visible], fault.below(visible, "element"), fault.bits, fault.below)


def _table(cos_sin: tuple[Tensor, Tensor], fault: Fault) -> Change:
    """One entry of cos or sin of one token, [R,S,E]."""
    table = cos_sin[fault.below(2, "half")]
    values = table[fault.row, fault.below(table.shape[1], "position")]
    return corrupt(values, fault.below(values.numel(), "element"), fault.bits, fault.below)


def _weight(call: LinearCall, fault: Fault) -> Change:
    """One weight of a matrix: what the row's tokens would have with it, y + (w' - w) x."""
    output = _announced(call)
    feature = fault.below(call.weight.shape[0], "feature")
    element = fault.below(call.weight.shape[1], "element")
    weight = call.weight[feature, element]
    wrong, change = corrupted(weight, fault.bits, fault.below)
    x_S = call.x[fault.row, :, element].double()
    delta_S = (wrong.double() - weight.double()) * x_S
    _add_before_store(call, output, fault, feature, slice(None), delta_S)
    return change


def _accumulator(call: LinearCall, fault: Fault) -> Change:
    """A float32 partial sum of one output feature, wrong from the middle of the product on."""
    output = _announced(call)
    feature = fault.below(call.weight.shape[0], "feature")
    terms = 1 + fault.below(call.weight.shape[1], "terms")
    position = fault.below(output.shape[1], "position")
    x, w = call.x[fault.row, position, :terms].float(), call.weight[feature, :terms].float()
    partial = (x @ w).reshape(())
    wrong, change = corrupted(partial, fault.bits, fault.below)
    at = slice(position, position + 1)
    delta_S = (wrong.double() - partial.double()).reshape(1)
    _add_before_store(call, output, fault, feature, at, delta_S)
    return change


def _announced(call: LinearCall | RMSNormCall) -> Tensor:
    """The output of a call that has run."""
    if call.output is None:
        raise ContractError(
            f"sites: {call.module} announced no output, expected one after it ran; "
            "listen in the phase after"
        )
    return call.output


def _add_before_store(
    call: LinearCall, output: Tensor, fault: Fault, feature: int, at: slice, delta_S: Tensor
) -> None:
    """Change a sum before it is rounded to the output's dtype.

    Where the exact sum rounds to what is stored it is what the change is added to, else the
    stored value itself: without a fault nothing may move.
    """
    stored_S = output[fault.row, at, feature]
    exact_S = call.x[fault.row, at].double() @ call.weight[feature].double()
    if call.bias is not None:
        exact_S = exact_S + call.bias[feature].double()
    same = exact_S.to(output.dtype) == stored_S
    before_S = torch.where(same, exact_S, stored_S.double())
    moved = (before_S + delta_S).to(output.dtype)
    stored_S.copy_(torch.where(delta_S == 0, stored_S, moved))


def _norm_weight(call: RMSNormCall, fault: Fault) -> Change:
    """One factor of an RMSNorm, for all of the row's tokens."""
    output = _announced(call)
    element = fault.below(call.weight.numel(), "element")
    weight = call.weight[element]
    wrong, change = corrupted(weight, fault.bits, fault.below)
    x_SD = call.x[fault.row].float()
    rstd_S1 = torch.rsqrt(x_SD.pow(2).mean(-1, keepdim=True) + call.eps)
    normed_S = (x_SD * rstd_S1).to(call.x.dtype)[:, element]
    stored_S = output[fault.row, :, element]
    same = (weight * normed_S).to(stored_S.dtype) == stored_S
    added = stored_S.double() + (wrong.double() - weight.double()) * normed_S.double()
    moved = torch.where(same, (wrong * normed_S).double(), added)
    stored_S.copy_(moved.to(stored_S.dtype))
    return change


def _in_cache(cache_RKLE: Tensor, fault: Fault) -> Change:
    """One feature of one cached token."""
    return _in_heads(cache_RKLE, fault)


_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

SITES: dict[str, Site] = {
    site.id: site
    for site in (
        *(
            Site(f"weight_{name.removesuffix('_proj')}", Operator.LINEAR, name, _weight, True)
            for name in _PROJECTIONS
        ),
        Site("weight_lm_head", Operator.LINEAR, "lm_head", _weight, True, word=torch.float32),
        Site("weight_norm", Operator.RMS_NORM, "norm", _norm_weight, persistent=True),
        Site("linear_out", Operator.LINEAR, "_proj", _output),
        Site("accumulator", Operator.LINEAR, "_proj", _accumulator, word=torch.float32),
        Site("rope_q", Operator.ROPE, "", _rotated_q),
        Site("rope_k", Operator.ROPE, "", _rotated_k),
        Site("cos_sin", None, "rotary_emb", _table),
        Site("scores", None, "self_attn", _over_keys),
        Site("probs", None, "self_attn", _over_keys),
        Site("attention_out", Operator.ATTENTION, "", _head_output),
        Site("norm_out", Operator.RMS_NORM, "norm", _output),
        Site("swiglu", Operator.SWIGLU, "", _output),
        Site("residual", Operator.RESIDUAL, "", _output),
        Site("logits", Operator.LINEAR, "lm_head", _output, word=torch.float32),
        Site("kv_k", None, "", _in_cache, persistent=True),
        Site("kv_v", None, "", _in_cache, persistent=True),
    )
}
"""Every site by id; logits are the head's output, which is float32 (as the head itself)."""

PAGE_SITES = frozenset({"kv_k", "kv_v"})
"""Stored keys and values. Without pages nothing keeps their sums: they are not in the headline, and
the same flips are judged again in an engine's pages."""

MODEL_SITES = ("linear_out", "accumulator", "attention_out", "norm_out", "swiglu", "residual")
"""Sites of the further fault models."""
