"""What is wrong with the form of a call to attention or to the KV cache, in words or empty.

Axes: see tocsin/core/calls.py.
"""

import torch

from tocsin.checker.operands import (
    apart,
    differs,
    mixed_dtypes,
    not_floating,
    not_integer,
    strided,
    wrong_axes,
    wrong_dtype,
    wrong_shape,
)
from tocsin.checker.rounding import FLOATS
from tocsin.core.calls import AttentionCall, KVReadCall, KVUpdateCall, VarlenAttentionCall


def attention(call: AttentionCall) -> str:
    """The rule of AttentionCall."""
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
    return found or _written_sums(call)


def _written_sums(call: AttentionCall) -> str:
    rows, kv_heads, keys, size = call.k.shape
    wanted = {
        "key_sums": (rows, kv_heads, size),
        "key_reach": (rows, kv_heads),
        "value_sums": (rows, kv_heads, keys),
        "value_norms": (rows, kv_heads, keys),
        "value_low": (rows, kv_heads, call.v.shape[3]),
        "value_high": (rows, kv_heads, call.v.shape[3]),
    }
    given = {name: getattr(call, name) for name in wanted if getattr(call, name) is not None}
    if not given:
        return ""
    if len(given) < len(wanted):
        missing = ", ".join(sorted(set(wanted) - set(given)))
        return f"sums as written lack {missing}, expected all or none"
    floats = {name: tensor for name, tensor in given.items() if name != "key_sums"}
    found = wrong_dtype({torch.float32}, **floats)
    found = found or wrong_dtype({torch.float64}, key_sums=given["key_sums"])
    if not found and call.q.shape[2] != 1:
        found = f"sums as written for {call.q.shape[2]} queries a row, expected 1"
    for name, tensor in given.items():
        found = found or wrong_shape(name, tensor, wanted[name])
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


def varlen(call: VarlenAttentionCall) -> str:
    """The rule of VarlenAttentionCall."""
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


def kv_update(call: KVUpdateCall) -> str:
    """The rule of KVUpdateCall."""
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


def kv_read(call: KVReadCall) -> str:
    """The rule of KVReadCall."""
    pairs = ("owners", "epochs", "first_positions", "lengths")
    names = ("entry_rows", "pages", *pairs, *(f"{name}_expected" for name in pairs))
    tensors = {name: getattr(call, name) for name in names}
    found = not_integer(**tensors) or wrong_axes(1, **tensors)
    found = found or not_integer(sums=call.sums, sums_expected=call.sums_expected)
    found = found or differs("entry_rows", call.entry_rows, **tensors)
    found = found or wrong_shape("sums_expected", call.sums_expected, call.sums.shape)
    if not found and call.sums.shape[:1] != call.pages.shape:
        found = f"sums is {list(call.sums.shape)}, expected {call.pages.numel()} entries"
    return found or _prefixes(call)


def _prefixes(call: KVReadCall) -> str:
    prefixes, expected = call.prefixes, call.prefixes_expected
    if prefixes is None and expected is None:
        return ""
    if prefixes is None or expected is None:
        return "prefixes has no pair, expected both prefixes and prefixes_expected, or neither"
    found = not_integer(prefixes=prefixes, prefixes_expected=expected)
    found = found or wrong_axes(2, prefixes=prefixes)
    shape = (call.pages.numel(), prefixes.shape[1] if not found else 0)
    found = found or wrong_shape("prefixes", prefixes, shape)
    return found or wrong_shape("prefixes_expected", expected, shape)
