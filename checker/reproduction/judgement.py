"""One operator call against a clean run's: is its result the one that clean parameters give?

Axes: see tocsin/core/calls.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from tocsin.checker.reproduction.reference import healthy
from tocsin.checker.rounding import U32, norm, smallest_step, unit_roundoff
from tocsin.core import calls
from tocsin.core.calls import Call


@dataclass(frozen=True, slots=True)
class Judged:
    """What was found.

    Attributes:
        ratio: worst deviation over its limit; above 1, or NaN, is beyond rounding.
        drift: largest distance from the clean run's result over its largest number.
        place: of the worst deviation, with both numbers.
        operator: another name than the call's own, for what is no operator of it.
    """

    ratio: float
    drift: float
    place: str = ""
    operator: str = ""


class Judge:
    """Judges the calls of a suspect run; keeps the row norms of the clean weights it has met."""

    def __init__(self) -> None:
        """Nothing was met yet."""
        self._row_norms: dict[int, Tensor] = {}

    def judged(self, call: Call, clean: Call) -> Judged:
        """Judge one call.

        Args:
            call: its inputs count as given; its parameters, tables and masks are not trusted.
            clean: the same call of a clean run, float32: gives the parameters.
        """
        exact = _exact(call, clean)
        if exact is not None:
            return exact
        with torch.no_grad():
            return self._computed(call, clean)

    def _computed(self, call: Call, clean: Call) -> Judged:
        worst, drift = Judged(0.0, 0.0), 0.0
        for name, (reference, scale) in self._references(call, clean).items():
            result = getattr(call, name)
            if reference.shape != result.shape:
                continue
            unit = unit_roundoff(result.dtype)
            limit = scale * (4 * unit + 16 * U32) + 4 * smallest_step(result.dtype)
            found = _compared(name, result, reference, limit)
            if not found.ratio <= worst.ratio:
                worst = found
            drift = max(drift, _drift(result, getattr(clean, name)))
        return replace(worst, drift=drift)

    def _references(self, call: Any, clean: Any) -> dict[str, tuple[Tensor, Tensor]]:
        """What each result ought to be, and the magnitude that rounding is measured by."""
        if isinstance(call, calls.LinearCall) and call.output is not None:
            return {"output": self._product(call.x, clean.weight, clean.bias)}
        if isinstance(call, calls.LogitsCall) and call.hidden is not None and call.softcap is None:
            return {"logits": self._product(call.hidden, clean.weight, None)}
        hybrid = _with_clean_parameters(call, clean)
        found = {
            name: (ought, _scale(hybrid, name, ought))
            for name, ought in healthy(hybrid).items()
            if name in _RESULTS.get(type(call), ("output",))
        }
        if isinstance(call, calls.RopeCall):
            for name in ("cos", "sin"):
                table = getattr(clean, name).to(torch.float64)
                found[name] = (table, torch.ones_like(table))
        return found

    def _product(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        """x Wᵀ in float32, and a quarter of |x| |W_n|: far above what rounding makes of a sum."""
        norms = self._row_norms.get(id(weight))
        if norms is None:
            norms = self._row_norms[id(weight)] = norm(weight)
        wide = x.to(torch.float32)
        reference = functional.linear(wide, weight.to(torch.float32), bias)
        scale = norm(wide)[..., None] * norms / 4
        if bias is not None:
            scale = scale + bias.abs()
        return reference.to(torch.float64), scale.to(torch.float64) + reference.abs()


_RESULTS: Final[Mapping[type[Call], tuple[str, ...]]] = {
    calls.RopeCall: ("q_out", "k_out"),
    calls.LogitsCall: ("logits",),
}
_PARAMETERS: Final[Mapping[type[Call], tuple[str, ...]]] = {
    calls.EmbeddingCall: ("weight",),
    calls.RMSNormCall: ("weight", "eps"),
    calls.AttentionCall: ("mask", "causal", "scale", "softcap"),
    calls.LogitsCall: ("weight", "softcap"),
    calls.SwiGLUCall: ("activation",),
}
_FED: Final[Mapping[type[Call], tuple[str, ...]]] = {
    calls.BatchCall: ("input_ids", "position_ids"),
    calls.VarlenAttentionCall: ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"),
}
"""What a step is fed with: equal or not."""


def _exact(call: Call, clean: Call) -> Judged | None:
    """Metadata is the clean run's, to the last number; None for a call that computes."""
    names = _FED.get(type(call))
    if names is None:
        return None
    for name in names:
        mine, other = getattr(call, name), getattr(clean, name)
        if isinstance(mine, Tensor):
            if mine.dtype != other.dtype:
                place = f"{name} is {mine.dtype}, the clean run's {other.dtype}"
                return Judged(float("inf"), 0.0, place)
            if mine.shape != other.shape or not torch.equal(mine, other):
                return Judged(float("inf"), 0.0, f"{name} {_short(mine)}, not {_short(other)}")
        elif mine != other:
            return Judged(float("inf"), 0.0, f"{name} {mine}, not {other}")
    return Judged(0.0, 0.0)


def _with_clean_parameters(call: Call, clean: Call) -> Call:
    values: dict[str, Any] = {
        name: getattr(clean, name) for name in _PARAMETERS.get(type(call), ())
    }
    if isinstance(call, calls.RopeCall) and isinstance(clean, calls.RopeCall):
        # The table has its own comparison; rotated heads are judged by the table they had.
        values["inv_freq"] = None
    if isinstance(call, calls.RMSNormCall):
        values["weight_trusted"] = None
    return replace(call, **values)


def _scale(call: Any, name: str, reference: Tensor) -> Tensor:
    """Sums of magnitudes: what rounding of inputs, parameters and partial sums may amount to."""
    if isinstance(call, calls.ResidualCall):
        return call.x.to(torch.float64).abs() + call.delta.to(torch.float64).abs()
    if isinstance(call, calls.SwiGLUCall):
        return (call.gate.to(torch.float64) * call.up.to(torch.float64)).abs() + reference.abs()
    if isinstance(call, calls.RopeCall):
        x = call.q if name == "q_out" else call.k
        scale = x.to(torch.float64).abs().amax(dim=-1, keepdim=True)
        return (scale * 2 * abs(call.table_scale)).expand(reference.shape)
    if isinstance(call, calls.AttentionCall):
        return _attention_scale(call).expand(reference.shape)
    return reference.abs() * 2


def _attention_scale(call: calls.AttentionCall) -> Tensor:
    """Largest value of a row's keys, times what a score that is off makes of a weight."""
    groups = call.q.shape[1] // call.k.shape[1]
    values = call.v.to(torch.float64).nan_to_num(0.0)
    largest = values.abs().amax(dim=(2, 3), keepdim=True).repeat_interleave(groups, dim=1)
    factor = call.q.shape[-1] ** -0.5 if call.scale is None else call.scale
    lengths_q = call.q.to(torch.float64).norm(dim=-1, keepdim=True)
    lengths_k = call.k.to(torch.float64).nan_to_num(0.0).norm(dim=-1).amax(dim=-1)
    lengths_k = lengths_k[:, :, None, None].repeat_interleave(groups, dim=1)
    scale: Tensor = largest * (1 + lengths_q * lengths_k * abs(factor))
    return scale


def _compared(name: str, result: Tensor, reference: Tensor, limit: Tensor) -> Judged:
    number = result.to(torch.float64)
    same = (number == reference) | (number.isnan() & reference.isnan())
    ratio = ((number - reference).abs() / limit).masked_fill(same, 0.0)
    ratio = ratio.nan_to_num(torch.inf, torch.inf)
    if ratio.numel() == 0:
        return Judged(0.0, 0.0)
    at = int(ratio.reshape(-1).argmax())
    index = [int(one) for one in torch.unravel_index(torch.tensor(at), ratio.shape)]
    was, should = float(number.reshape(-1)[at]), float(reference.reshape(-1)[at])
    place = f"{name}{index} is {was:.6g}, clean parameters give {should:.6g}"
    return Judged(float(ratio.reshape(-1)[at]), 0.0, place)


def _drift(result: Tensor, clean: Any) -> float:
    if not isinstance(clean, Tensor) or clean.shape != result.shape or clean.numel() == 0:
        return 0.0
    reference = clean.to(torch.float64)
    distance = (result.to(torch.float64) - reference).abs().nan_to_num(torch.inf).amax()
    return float(distance / reference.abs().amax().clamp_min(1e-30))


def _short(tensor: Tensor) -> str:
    values = tensor.reshape(-1).tolist()
    return str(values if len(values) <= 12 else [*values[:6], "…", *values[-3:]]).replace("'", "")
