"""What is wrong with the form of a call: dtypes, devices, axes and shapes, never values.

One rule an operator. `memory.tensor_contract` reports it; every other check asks here first, so
that a malformed tensor is an alarm and never an exception. Everything is Python on metadata:
nothing here reads device memory.

Axes: see tocsin/core/calls.py.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tocsin.checker.operands import (
    apart,
    differs,
    mixed_dtypes,
    no_axis,
    not_floating,
    not_integer,
    strided,
    wrong_axes,
    wrong_dtype,
    wrong_shape,
)
from tocsin.checker.ratios import alarm, nothing
from tocsin.checker.rounding import FLOATS, INTEGERS
from tocsin.core.calls import (
    AllReduceCall,
    AttentionCall,
    BatchCall,
    Call,
    EmbeddingCall,
    KVReadCall,
    KVUpdateCall,
    LinearCall,
    LogitProcessorCall,
    LogitsCall,
    ResidualCall,
    RMSNormCall,
    RopeCall,
    SamplerCall,
    SwiGLUCall,
    TokenizerOutputCall,
    VarlenAttentionCall,
    WeightCall,
)

_sound: Call | None = None


def assume_sound(call: Call | None) -> None:
    """The form of this very record was looked at: until the next call there is no need to again.

    Another thread's record that comes in between is merely looked at once more.
    """
    global _sound
    _sound = call


def problem(call: Call) -> str:
    """What is wrong with the form of a call, in words; empty when nothing is."""
    if call is _sound:
        return ""
    rule = _RULES.get(type(call))
    return "" if rule is None else rule(call)


def unready(call: Call, *needed: Tensor) -> Tensor | None:
    """The ratio of a call that a check cannot compute on; None when it can.

    Args:
        needed: tensors without whose elements there is nothing to check.
    """
    if problem(call):
        return alarm(call)
    if any(tensor.numel() == 0 for tensor in needed):
        return nothing(call)
    return None


def _tokenizer(call: TokenizerOutputCall) -> str:
    ids = call.input_ids
    found = not_integer(input_ids=ids) or (
        "" if 1 <= ids.ndim <= 2 else f"input_ids has {ids.ndim} axes, expected [R,S] or [T]"
    )
    if not found and call.attention_mask is not None:
        found = wrong_dtype(INTEGERS | {torch.bool}, attention_mask=call.attention_mask) or differs(
            "input_ids", ids, attention_mask=call.attention_mask
        )
    if not found and call.position_ids is not None:
        found = not_integer(position_ids=call.position_ids) or differs(
            "input_ids", ids, position_ids=call.position_ids
        )
    return found


def _embedding(call: EmbeddingCall) -> str:
    found = not_integer(input_ids=call.input_ids) or not_floating(weight=call.weight)
    found = found or wrong_axes(2, weight=call.weight) or apart(call)
    if not found and call.output is not None:
        expected = (*call.input_ids.shape, call.weight.shape[1])
        found = not_floating(output=call.output) or wrong_shape("output", call.output, expected)
    return found


def _rope(call: RopeCall) -> str:
    q, k, cos = call.q, call.k, call.cos
    found = not_floating(q=q, k=k, cos=cos, sin=call.sin) or not_integer(
        position_ids=call.position_ids
    )
    found = found or wrong_axes(4, q=q, k=k) or wrong_axes(3, cos=cos, sin=call.sin)
    found = found or wrong_axes(2, position_ids=call.position_ids) or mixed_dtypes(q=q, k=k)
    found = found or apart(call) or strided(q=q, k=k)
    if found:
        return found
    rows, _, positions, size = q.shape
    if k.shape[0] != rows or k.shape[2:] != q.shape[2:]:
        return f"k is {list(k.shape)}, expected [{rows},K,{positions},{size}] as in q"
    if cos.shape != call.sin.shape or cos.shape[0] not in (1, rows) or cos.shape[1] != positions:
        return f"cos is {list(cos.shape)}, sin {list(call.sin.shape)}, expected [R|1,{positions},E]"
    if cos.shape[2] > size or cos.shape[2] % 2:
        return f"cos has {cos.shape[2]} columns, expected an even number up to {size}"
    if call.position_ids.shape[0] not in (1, rows) or call.position_ids.shape[1] != positions:
        return f"position_ids is {list(call.position_ids.shape)}, expected [R|1,{positions}]"
    if call.inv_freq is not None:
        found = not_floating(inv_freq=call.inv_freq) or wrong_shape(
            "inv_freq", call.inv_freq, (cos.shape[2] // 2,)
        )
    for name, out, like in (("q_out", call.q_out, q), ("k_out", call.k_out, k)):
        if out is not None:
            found = found or not_floating(**{name: out}) or wrong_shape(name, out, like.shape)
    return found


def _rms_norm(call: RMSNormCall) -> str:
    x = call.x
    found = not_floating(x=x, weight=call.weight) or apart(call) or no_axis(x=x)
    found = found or strided(x=x) or wrong_shape("weight", call.weight, x.shape[-1:])
    if not found and call.weight_trusted is not None:
        found = not_floating(weight_trusted=call.weight_trusted) or wrong_shape(
            "weight_trusted", call.weight_trusted, x.shape[-1:]
        )
    if not found and call.output is not None:
        found = not_floating(output=call.output) or wrong_shape("output", call.output, x.shape)
    return found


def _linear(call: LinearCall) -> str:
    x, weight = call.x, call.weight
    found = not_floating(x=x, weight=weight) or wrong_axes(2, weight=weight) or no_axis(x=x)
    found = found or mixed_dtypes(x=x, weight=weight) or apart(call) or strided(x=x)
    if found:
        return found
    features, hidden = weight.shape
    if x.shape[-1] != hidden:
        return f"x has {x.shape[-1]} columns, weight {hidden}, expected the same"
    if call.bias is not None:
        found = not_floating(bias=call.bias) or wrong_shape("bias", call.bias, (features,))
    if call.block_size < 1:
        return f"block_size is {call.block_size}, expected at least 1"
    blocks = -(-features // call.block_size)
    for name, tensor, shape in (
        ("block_sums", call.block_sums, (blocks, hidden)),
        ("block_norms", call.block_norms, (blocks,)),
        ("bias_sums", call.bias_sums, (blocks,)),
    ):
        if tensor is not None:
            found = found or not_floating(**{name: tensor}) or wrong_shape(name, tensor, shape)
    if not found and call.output is not None:
        expected = (*x.shape[:-1], features)
        found = not_floating(output=call.output) or wrong_shape("output", call.output, expected)
    return found


def _swiglu(call: SwiGLUCall) -> str:
    found = not_floating(gate=call.gate, up=call.up) or mixed_dtypes(gate=call.gate, up=call.up)
    found = found or apart(call) or no_axis(gate=call.gate)
    found = found or wrong_shape("up", call.up, call.gate.shape)
    if not found and call.output is not None:
        found = not_floating(output=call.output) or wrong_shape(
            "output", call.output, call.gate.shape
        )
    return found


def _residual(call: ResidualCall) -> str:
    found = not_floating(x=call.x, delta=call.delta) or apart(call) or no_axis(x=call.x)
    found = found or wrong_shape("delta", call.delta, call.x.shape)
    if not found and call.output is not None:
        found = not_floating(output=call.output) or wrong_shape("output", call.output, call.x.shape)
    return found


def _attention(call: AttentionCall) -> str:
    q, k, v = call.q, call.k, call.v
    found = (
        not_floating(q=q, k=k, v=v) or wrong_axes(4, q=q, k=k, v=v) or mixed_dtypes(q=q, k=k, v=v)
    )
    found = found or apart(call) or strided(q=q, k=k, v=v)
    if found:
        return found
    rows, heads, positions, size = q.shape
    if k.shape[0] != rows or k.shape[3] != size:
        return f"k is {list(k.shape)}, expected [{rows},K,L,{size}] as in q"
    if v.shape[:3] != k.shape[:3]:
        return f"v is {list(v.shape)}, expected {list(k.shape[:3])} and a head size, as in k"
    if k.shape[1] == 0 or heads % k.shape[1]:
        return f"q has {heads} heads, k {k.shape[1]}, expected a multiple"
    found = _attention_mask(call)
    if not found and call.output is not None:
        expected = (rows, heads, positions, v.shape[3])
        found = not_floating(output=call.output) or wrong_shape("output", call.output, expected)
    if not found and call.lse is not None:
        found = not_floating(lse=call.lse) or wrong_shape("lse", call.lse, (rows, heads, positions))
    return found


def _attention_mask(call: AttentionCall) -> str:
    mask = call.mask
    if mask is None:
        return ""
    found = wrong_dtype(FLOATS | {torch.bool}, mask=mask)
    if found:
        return f"{found} (True = may attend, or added to the scores)"
    rows, heads, positions, _ = call.q.shape
    full = (rows, heads, positions, call.k.shape[2])
    fits = mask.ndim <= 4 and all(
        size in (1, wanted)
        for size, wanted in zip(reversed(mask.shape), reversed(full), strict=False)
    )
    return "" if fits else f"mask is {list(mask.shape)}, expected broadcastable to {list(full)}"


def _varlen(call: VarlenAttentionCall) -> str:
    # The lengths themselves belong to memory.cu_seqlens, which says more about them.
    if call.qkv is not None:
        qkv = call.qkv
        found = not_floating(qkv=qkv) or wrong_axes(4, qkv=qkv) or apart(call) or strided(qkv=qkv)
        if not found and qkv.shape[1] != 3:
            found = f"qkv is {list(qkv.shape)}, expected [T,3,H,E]"
        expected: tuple[int, ...] = () if found else (qkv.shape[0], *qkv.shape[2:])
    elif call.q is None or call.k is None or call.v is None:
        return apart(call)
    else:
        q, k, v = call.q, call.k, call.v
        found = (
            not_floating(q=q, k=k, v=v)
            or wrong_axes(3, q=q, k=k, v=v)
            or mixed_dtypes(q=q, k=k, v=v)
        )
        found = found or apart(call) or strided(q=q, k=k, v=v)
        if not found and k.shape[2] != q.shape[2]:
            found = f"k has head size {k.shape[2]}, q {q.shape[2]}, expected the same"
        if not found and v.shape[:2] != k.shape[:2]:
            found = f"v is {list(v.shape)}, expected {list(k.shape[:2])} and a head size, as in k"
        if not found and (k.shape[1] == 0 or q.shape[1] % k.shape[1]):
            found = f"q has {q.shape[1]} heads, k {k.shape[1]}, expected a multiple"
        expected = () if found else (*q.shape[:2], v.shape[2])
    if not found and call.output is not None:
        found = not_floating(output=call.output) or wrong_shape("output", call.output, expected)
    return found


def _kv_update(call: KVUpdateCall) -> str:
    cache, new = call.key_cache, call.new_key
    found = not_floating(
        key_cache=cache, value_cache=call.value_cache, new_key=new, new_value=call.new_value
    )
    found = found or wrong_axes(4, key_cache=cache, value_cache=call.value_cache)
    found = found or wrong_axes(3, new_key=new, new_value=call.new_value)
    found = found or not_integer(
        slot_mapping=call.slot_mapping,
        block_table=call.block_table,
        seq_lens=call.seq_lens,
        position_ids=call.position_ids,
    )
    found = found or wrong_axes(2, block_table=call.block_table) or apart(call)
    if found:
        return found
    tokens, rows = new.shape[0], call.block_table.shape[0]
    for name, tensor, kept in (
        ("new_key", new, cache),
        ("new_value", call.new_value, call.value_cache),
    ):
        found = found or wrong_shape(name, tensor, (tokens, *kept.shape[2:]))
    found = found or wrong_shape("slot_mapping", call.slot_mapping, (tokens,))
    found = found or wrong_shape("position_ids", call.position_ids, (tokens,))
    found = found or wrong_shape("seq_lens", call.seq_lens, (rows,))
    if not found and call.owners is not None:
        found = not_integer(owners=call.owners) or wrong_shape(
            "owners", call.owners, cache.shape[:1]
        )
    if found:
        return found
    if call.token_rows is not None:
        return not_integer(token_rows=call.token_rows) or wrong_shape(
            "token_rows", call.token_rows, (tokens,)
        )
    if tokens and (rows == 0 or tokens % rows):
        return f"{tokens} tokens for {rows} rows, expected a multiple; pass token_rows"
    return ""


def _kv_read(call: KVReadCall) -> str:
    pairs = ("owners", "epochs", "first_positions", "lengths")
    names = ("entry_rows", "pages", *pairs, *(f"{name}_expected" for name in pairs))
    tensors = {name: getattr(call, name) for name in names}
    found = not_integer(**tensors) or wrong_axes(1, **tensors)
    found = found or not_integer(sums=call.sums, sums_expected=call.sums_expected)
    found = found or differs("entry_rows", call.entry_rows, **tensors)
    found = found or wrong_shape("sums_expected", call.sums_expected, call.sums.shape)
    if not found and call.sums.shape[:1] != call.pages.shape:
        found = f"sums is {list(call.sums.shape)}, expected {call.pages.numel()} entries"
    return found


def _batch(call: BatchCall) -> str:
    tensors = {
        "input_ids": call.input_ids,
        "input_ids_expected": call.input_ids_expected,
        "position_ids": call.position_ids,
        "position_ids_expected": call.position_ids_expected,
    }
    return not_integer(**tensors) or differs("input_ids", call.input_ids, **tensors)


def _logits(call: LogitsCall) -> str:
    logits = call.logits
    found = not_floating(logits=logits) or no_axis(logits=logits) or apart(call)
    if not found and call.hidden is not None:
        found = not_floating(hidden=call.hidden) or no_axis(hidden=call.hidden)
        if not found and call.hidden.shape[:-1] != logits.shape[:-1]:
            found = f"hidden is {list(call.hidden.shape)}, logits {list(logits.shape)}: other rows"
    if not found and call.weight is not None:
        found = not_floating(weight=call.weight) or wrong_axes(2, weight=call.weight)
        hidden = call.hidden.shape[-1] if call.hidden is not None else call.weight.shape[-1]
        found = found or wrong_shape("weight", call.weight, (logits.shape[-1], hidden))
    if not found and call.weight_norm_max is not None:
        found = not_floating(weight_norm_max=call.weight_norm_max) or (
            "" if call.weight_norm_max.numel() == 1 else "weight_norm_max: expected one number"
        )
    return found


def _logit_processor(call: LogitProcessorCall) -> str:
    found = not_floating(before=call.before, after=call.after) or no_axis(before=call.before)
    found = found or wrong_shape("after", call.after, call.before.shape) or apart(call)
    if not found and call.allowed is not None:
        found = wrong_dtype({torch.bool}, allowed=call.allowed) or wrong_shape(
            "allowed", call.allowed, call.before.shape
        )
    return found


def _sampler(call: SamplerCall) -> str:
    probs = call.probs
    found = not_floating(probs=probs) or ("" if 1 <= probs.ndim <= 2 else "probs: expected [R,V]")
    rows = probs.shape[:-1] if not found else ()
    if not found and call.token_ids is not None:
        found = not_integer(token_ids=call.token_ids) or wrong_shape(
            "token_ids", call.token_ids, rows
        )
    for name in ("temperature", "top_p", "top_k"):
        value = getattr(call, name)
        if not found and isinstance(value, Tensor):
            found = wrong_dtype(FLOATS | INTEGERS, **{name: value}) or (
                "" if value.shape in ((), rows) else f"{name} is {list(value.shape)}, expected [R]"
            )
    return found or apart(call)


def _all_reduce(call: AllReduceCall) -> str:
    found = not_floating(partials=call.partials, output=call.output)
    found = found or no_axis(partials=call.partials, output=call.output) or apart(call)
    return found or wrong_shape("output", call.output, call.partials.shape[1:])


def _weight(call: WeightCall) -> str:
    found = not_integer(sums=call.sums, sums_expected=call.sums_expected)
    return found or differs("sums_expected", call.sums_expected, sums=call.sums)


_RULES: dict[type[Call], Callable[[Any], str]] = {
    TokenizerOutputCall: _tokenizer,
    EmbeddingCall: _embedding,
    RopeCall: _rope,
    RMSNormCall: _rms_norm,
    LinearCall: _linear,
    SwiGLUCall: _swiglu,
    ResidualCall: _residual,
    AttentionCall: _attention,
    VarlenAttentionCall: _varlen,
    KVUpdateCall: _kv_update,
    KVReadCall: _kv_read,
    BatchCall: _batch,
    LogitsCall: _logits,
    LogitProcessorCall: _logit_processor,
    SamplerCall: _sampler,
    AllReduceCall: _all_reduce,
    WeightCall: _weight,
}
