"""Plain PyTorch references: what the fields of a call would be if nothing had gone wrong.

Written for clarity in float64, and apart from the checks, which they judge. Axes: see
tocsin/core/calls.py.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from tocsin.checker.masks import MASKED_BELOW
from tocsin.core import calls
from tocsin.core.calls import Call


def healthy(call: Call) -> dict[str, Tensor]:
    """The fields that follow from the others, as they ought to be: float64, or integers.

    Only fields that the call has; empty where no reference is known, or the operands do not fit.
    """
    rule = _RULES.get(type(call))
    if rule is None:
        return {}
    try:
        found = rule(call)
    except (RuntimeError, IndexError, ValueError):
        return {}  # operands that do not fit together: their form is the finding
    return {
        name: value
        for name, value in found.items()
        if isinstance(given := getattr(call, name), Tensor) and given.shape == value.shape
    }


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.float64)


def _embedding(call: calls.EmbeddingCall) -> dict[str, Tensor]:
    if call.output is None:
        return {}
    inside = (call.input_ids >= 0) & (call.input_ids < call.weight.shape[0])
    ids = torch.where(inside, call.input_ids, 0)
    return {"output": _wide(call.weight)[ids]}


def _rope(call: calls.RopeCall) -> dict[str, Tensor]:
    found = {}
    for name, x in (("q_out", call.q), ("k_out", call.k)):
        if getattr(call, name) is not None:
            found[name] = _rotated(_wide(x), _wide(call.cos), _wide(call.sin))
    if call.inv_freq is not None:
        angles = _wide(call.position_ids)[..., None] * _wide(call.inv_freq)
        angles = torch.cat((angles, angles), dim=-1)
        found["cos"] = (angles.cos() * call.table_scale).expand(call.cos.shape)
        found["sin"] = (angles.sin() * call.table_scale).expand(call.sin.shape)
    return found


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    turned = cos.shape[-1]
    part, rest = x[..., :turned], x[..., turned:]
    half = torch.cat((-part[..., turned // 2 :], part[..., : turned // 2]), dim=-1)
    return torch.cat((part * cos[:, None] + half * sin[:, None], rest), dim=-1)


def _rms_norm(call: calls.RMSNormCall) -> dict[str, Tensor]:
    found = {}
    if call.weight_trusted is not None:
        found["weight_trusted"] = _wide(call.weight)
    if call.output is not None:
        x = _wide(call.x)
        rstd = (x.square().mean(dim=-1, keepdim=True) + call.eps).rsqrt()
        found["output"] = x * rstd * _wide(call.weight)
    return found


def _linear(call: calls.LinearCall) -> dict[str, Tensor]:
    found, weight = {}, _wide(call.weight)
    bias = None if call.bias is None else _wide(call.bias)
    if call.output is not None:
        found["output"] = functional.linear(_wide(call.x), weight, bias)
    factors = 1.0 if call.block_weights is None else _wide(call.block_weights)[:, None]
    if call.block_sums is not None:
        found["block_sums"] = (_by_block(weight, call.block_size) * factors).sum(dim=1)
    if call.block_norms is not None:
        found["block_norms"] = _by_block(weight, call.block_size).flatten(1).norm(dim=1)
    if call.bias_sums is not None and bias is not None:
        found["bias_sums"] = (_by_block(bias[:, None], call.block_size) * factors).sum(dim=(1, 2))
    return found


def _by_block(weight_ND: Tensor, block_size: int) -> Tensor:
    """[G,block,D], the last block filled up with zeros."""
    missing = -weight_ND.shape[0] % block_size
    padded = functional.pad(weight_ND, (0, 0, 0, missing))
    return padded.reshape(-1, block_size, weight_ND.shape[1])


_ACTIVATIONS: Final[Mapping[str, Callable[[Tensor], Tensor]]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda gate: functional.gelu(gate, approximate="tanh"),
}


def _swiglu(call: calls.SwiGLUCall) -> dict[str, Tensor]:
    activation = _ACTIVATIONS.get(call.activation)
    if call.output is None or activation is None:
        return {}
    return {"output": activation(_wide(call.gate)) * _wide(call.up)}


def _residual(call: calls.ResidualCall) -> dict[str, Tensor]:
    return {} if call.output is None else {"output": _wide(call.x) + _wide(call.delta)}


def _attention(call: calls.AttentionCall) -> dict[str, Tensor]:
    groups = call.q.shape[1] // call.k.shape[1]
    q = _wide(call.q)
    k = _wide(call.k).repeat_interleave(groups, dim=1)
    v = _wide(call.v).repeat_interleave(groups, dim=1)
    scale = call.q.shape[-1] ** -0.5 if call.scale is None else call.scale
    scores = q @ k.transpose(-1, -2) * scale
    if call.softcap is not None:
        scores = torch.tanh(scores / call.softcap) * call.softcap
    blind = torch.zeros_like(scores, dtype=torch.bool)
    if call.mask is not None and call.mask.dtype is torch.bool:
        blind = blind | ~call.mask
    elif call.mask is not None:
        scores = scores + _wide(call.mask)
    if call.causal and call.q.shape[2] > 1:
        queries, keys = scores.shape[-2:]
        seen = torch.ones(queries, keys, dtype=torch.bool, device=scores.device)
        blind = blind | ~seen.tril(keys - queries)
    scores = scores.masked_fill(blind, -math.inf)
    weights = scores.softmax(dim=-1)
    weights = torch.where((scores == -math.inf).all(dim=-1, keepdim=True), 0.0, weights)
    # A key that nobody of a row may see has no say, whatever stands in its memory.
    hidden = (scores == -math.inf).all(dim=-2)[..., None]
    found = {}
    # Under an additive mask with a finite floor a query without keys mixes everything, somehow.
    lost = (scores <= MASKED_BELOW).all(dim=-1) & scores.isfinite().all(dim=-1)
    if call.output is not None:
        mixed = weights @ v.masked_fill(hidden, 0.0)
        found["output"] = torch.where(lost[..., None], _wide(call.output), mixed)
    if call.lse is not None:
        found["lse"] = torch.where(lost, _wide(call.lse), scores.logsumexp(dim=-1))
    return found


def _logits(call: calls.LogitsCall) -> dict[str, Tensor]:
    found = {}
    if call.weight is not None:
        if call.weight_norm_max is not None:
            largest = _wide(call.weight).norm(dim=-1).amax()
            found["weight_norm_max"] = largest.reshape(call.weight_norm_max.shape)
        if call.weight_row_sums is not None:
            found["weight_row_sums"] = _wide(call.weight).sum(dim=-1)
        if call.hidden is not None:
            logits = _wide(call.hidden) @ _wide(call.weight).T
            if call.softcap is not None:
                logits = torch.tanh(logits / call.softcap) * call.softcap
            found["logits"] = logits
    return found


def _all_reduce(call: calls.AllReduceCall) -> dict[str, Tensor]:
    return {"output": _wide(call.partials).sum(dim=0)}


def _tokenizer_output(call: calls.TokenizerOutputCall) -> dict[str, Tensor]:
    if call.position_ids is None:
        return {}
    real = torch.ones_like(call.input_ids) if call.attention_mask is None else call.attention_mask
    positions = real.to(torch.int64).cumsum(dim=-1) - 1
    # The position of padding is nobody's business.
    return {"position_ids": torch.where(real != 0, positions, call.position_ids)}


def _batch(call: calls.BatchCall) -> dict[str, Tensor]:
    return {"input_ids": call.input_ids_expected, "position_ids": call.position_ids_expected}


def _kv_read(call: calls.KVReadCall) -> dict[str, Tensor]:
    pairs = ("sums", "epochs", "first_positions", "lengths")
    found = {name: getattr(call, f"{name}_expected") for name in pairs}
    found["owners"] = torch.where(call.owners == -1, call.owners, call.owners_expected)
    if call.prefixes_expected is not None:
        found["prefixes"] = call.prefixes_expected
    return found


def _weight(call: calls.WeightCall) -> dict[str, Tensor]:
    return {"sums": call.sums_expected}


_RULES: Final[Mapping[type[Call], Callable[[Any], dict[str, Tensor]]]] = {
    calls.EmbeddingCall: _embedding,
    calls.RopeCall: _rope,
    calls.RMSNormCall: _rms_norm,
    calls.LinearCall: _linear,
    calls.SwiGLUCall: _swiglu,
    calls.ResidualCall: _residual,
    calls.AttentionCall: _attention,
    calls.LogitsCall: _logits,
    calls.AllReduceCall: _all_reduce,
    calls.TokenizerOutputCall: _tokenizer_output,
    calls.BatchCall: _batch,
    calls.KVReadCall: _kv_read,
    calls.WeightCall: _weight,
}
"""Records without a rule are looked at as they are: what they hold follows from nothing else."""
