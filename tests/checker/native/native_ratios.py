"""What the native operators say of one call, by the ids of the checks that they stand for."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from tocsin.checker import native
from tocsin.checker.checks.numerical import linear_checksum as checksum
from tocsin.core import calls

OPS = torch.ops.tocsin


def _listed(*values: Tensor | None) -> list[Tensor]:
    return [value for value in values if value is not None]


def _linear(call: calls.LinearCall) -> tuple[tuple[str, ...], Tensor]:
    sums, norms, bias_sums, bias_norms = checksum.checksums(call)
    ratios = OPS.linear_checksum(
        [call.x],
        [call.output],
        [sums],
        [norms],
        _listed(bias_sums),
        _listed(bias_norms),
        call.block_size,
        block_weights=call.block_weights,
    )
    return ("numerical.linear_checksum", "numerical.finite"), ratios


def _rms_norm(call: calls.RMSNormCall) -> tuple[tuple[str, ...], Tensor]:
    weight = call.weight if call.weight_trusted is None else call.weight_trusted
    ratios = OPS.rms_norm([call.x], [call.output], [weight], call.eps)
    return ("numerical.rms_dot", "numerical.rms_range", "numerical.finite"), ratios


def _residual(call: calls.ResidualCall) -> tuple[tuple[str, ...], Tensor]:
    ratios = OPS.residual([call.x], [call.delta], [call.output])
    return ("numerical.residual", "numerical.finite"), ratios


def _swiglu(call: calls.SwiGLUCall) -> tuple[tuple[str, ...], Tensor]:
    ratios = OPS.swiglu([call.gate], [call.up], [call.output], call.activation)
    return ("numerical.swiglu", "numerical.finite"), ratios


def _rope(call: calls.RopeCall) -> tuple[tuple[str, ...], Tensor]:
    ratios = OPS.rope(
        [call.q], [call.k], [call.q_out], [call.k_out], [call.cos], [call.sin], call.table_scale
    )
    table = OPS.rope_table(
        call.cos, call.sin, call.position_ids, call.inv_freq, call.q.shape[0], call.table_scale
    )
    names = ("numerical.rope_norm", "numerical.rope_signed_sum", "numerical.finite")
    return (*names, "numerical.rope_table"), torch.cat((ratios, table))


def _attention(call: calls.AttentionCall) -> tuple[tuple[str, ...], Tensor]:
    written = (
        call.key_sums,
        call.key_reach,
        call.value_sums,
        call.value_norms,
        call.value_low,
        call.value_high,
    )
    ratios = OPS.attention(
        [call.q],
        [call.k],
        [call.v],
        [call.output],
        _listed(call.mask),
        _listed(call.lse),
        _listed(*written),
        call.causal,
        call.scale,
        call.softcap,
    )
    names = ("attention_row_sum", "attention_hull", "attention_mask", "attention_scores", "finite")
    return tuple(f"numerical.{name}" for name in names), ratios


def _kv_update(call: calls.KVUpdateCall) -> tuple[tuple[str, ...], Tensor]:
    ratios = OPS.kv_written(
        [call.key_cache],
        [call.value_cache],
        [call.new_key],
        [call.new_value],
        call.slot_mapping.to(torch.int64),
    )
    return ("state.kv_page_sum", "numerical.finite"), ratios


def _logits(call: calls.LogitsCall) -> tuple[tuple[str, ...], Tensor]:
    norm = call.weight_norm_max
    kept = {"weight": call.weight, "weight_row_sums": call.weight_row_sums}
    ratios = OPS.logits(call.logits, call.hidden, norm, call.softcap, **kept)
    if norm is None and call.weight is not None:  # Python takes it from the weight for the bound
        found = torch.linalg.vector_norm(call.weight.float(), dim=-1).amax()
        ratios[0] = OPS.logits(call.logits, call.hidden, found, call.softcap)[0]
    names = ("numerical.logits_bound", "numerical.logits_winner", "numerical.finite")
    return names, ratios


def _embedding(call: calls.EmbeddingCall) -> tuple[tuple[str, ...], Tensor]:
    ratios = OPS.embedding([call.input_ids], [call.weight], [call.output])
    return ("numerical.embedding_rows", "numerical.finite"), ratios


NATIVE: Mapping[type[calls.Call], Callable[[Any], tuple[tuple[str, ...], Tensor]]] = {
    calls.LinearCall: _linear,
    calls.RMSNormCall: _rms_norm,
    calls.ResidualCall: _residual,
    calls.SwiGLUCall: _swiglu,
    calls.RopeCall: _rope,
    calls.AttentionCall: _attention,
    calls.KVUpdateCall: _kv_update,
    calls.LogitsCall: _logits,
    calls.EmbeddingCall: _embedding,
}


def native_ratios(call: calls.Call) -> dict[str, Tensor]:
    """Check id → [T] float32, of every native result for this call."""
    assert native.available(), native.reason()
    names, ratios = NATIVE[type(call)](call)
    return dict(zip(names, ratios[:, 0], strict=True))
