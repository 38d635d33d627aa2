"""Failing calls of the shapes that a served model has: SmolLM2's, eight slots, a chunk of 32."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from tests.checker import calls as makers
from tests.checker.changes import flip
from tocsin.core import calls
from tocsin.core.calls import Call

_F32 = torch.float32
_LENGTHS = (200, 100, 50, 0, 300, 128, 90, 17)


def _linear() -> Call:
    call = makers.linear(makers.generator(), _F32, (8, 1, 1536), 576)
    flip(call.output, 1)
    return call


def _weight() -> Call:
    call = makers.linear(makers.generator(), _F32, (8, 1, 1536), 576)
    from tocsin.checker.checks.numerical.linear_checksum import checksums

    call.block_sums, call.block_norms, _, _ = (
        None if one is None else one.clone() for one in checksums(call)
    )
    flip(call.weight, 2, 77)
    call.output = torch.nn.functional.linear(call.x, call.weight)
    return call


def _attention(field: str) -> Call:
    call: Any = makers.attention(
        makers.generator(), _F32, (32, 256), heads=(9, 3), causal=True, size=64, rows=4
    )
    flip(getattr(call, field), 0)
    return call


def _norm() -> Call:
    call: Any = makers.rms_norm(makers.generator(), torch.bfloat16, 8, 1, 576)
    call.output = call.output * 1.05
    return call


def _rope() -> Call:
    call = makers.rope(
        makers.generator(), _F32, makers.consecutive(makers.generator(), 1, 32), (9, 3), 64
    )
    call.cos = call.cos.flip(1)
    return call


def _swiglu() -> Call:
    call: Any = makers.swiglu(makers.generator(), _F32, 8, 1, 1536)
    flip(call.output, 0)
    return call


def _residual() -> Call:
    call: Any = makers.residual(makers.generator(), _F32, 8, 1, 576)
    flip(call.output, 4)
    return call


def _logits() -> Call:
    g = makers.generator()
    hidden, weight = makers.normal(g, _F32, 8, 576), makers.normal(g, _F32, 4096, 576)
    call = calls.LogitsCall(logits=hidden @ weight.T, hidden=hidden, weight=weight)
    flip(call.logits, 1)
    return call


def _kv(change: Callable[[Any], object]) -> Call:
    call = makers.kv_update(makers.generator(), _F32, _LENGTHS, 1, page_size=16)
    change(call)
    return call


def _kv_read() -> Call:
    call = makers.kv_read(makers.generator(), (32,) * 8, 4)
    call.sums[40, 3] += 1
    return call


def _sampler() -> Call:
    g = makers.generator()
    probs = torch.randn(8, 8192, generator=g).softmax(-1)
    ids = probs.argmax(-1)
    ids[3] = 7
    return calls.SamplerCall(probs=probs, token_ids=ids, temperature=0.0)


def _processor() -> Call:
    g = makers.generator()
    before, allowed = torch.randn(8, 8192, generator=g), torch.rand(8, 8192, generator=g) < 0.1
    after = before.masked_fill(~allowed, -torch.inf)
    return calls.LogitProcessorCall(before=before, after=after, allowed=allowed.flip(0))


def _varlen() -> Call:
    call: Any = makers.varlen(
        makers.generator(), _F32, (1,) * 8, tuple(n + 1 for n in _LENGTHS), "q k v"
    )
    call.cu_seqlens_k[4:] -= 2
    return call


def _stale() -> Call:
    """What an engine announces: the ledger's lengths beside those of the launch."""
    call: Any = makers.varlen(
        makers.generator(), _F32, (1,) * 8, tuple(n + 1 for n in _LENGTHS), "q k v"
    )
    call.lengths_q_expected = call.cu_seqlens_q.diff()
    call.lengths_k_expected = call.cu_seqlens_k.diff()
    call.rows = 8
    call.cu_seqlens_k[4:] -= 1
    return call


def _all_reduce() -> Call:
    call: Any = makers.all_reduce(makers.generator(), _F32, 8, 32, 576)
    flip(call.output, 0)
    return call


def _embedding() -> Call:
    call: Any = makers.embedding(makers.generator(), _F32, 8, 32)
    call.input_ids[2, 5] = 50
    return call


def _to_zero(call: Any) -> None:
    call.key_cache.flatten(0, 1)[call.slot_mapping[1]] = 0


REALISTIC: Mapping[str, tuple[str, Callable[[], Call]]] = {
    "a product": ("numerical.linear_checksum", _linear),
    "a weight": ("numerical.linear_checksum", _weight),
    "an attention output": ("numerical.attention_row_sum", lambda: _attention("output")),
    "a cached key": ("numerical.attention_row_sum", lambda: _attention("k")),
    "a norm of wrong scale": ("numerical.rms_range", _norm),
    "a foreign table": ("numerical.rope_table", _rope),
    "an activation": ("numerical.swiglu", _swiglu),
    "a residual": ("numerical.residual", _residual),
    "a logit": ("numerical.logits_bound", _logits),
    "a slot off by one": ("state.slot_mapping", lambda: _kv(lambda c: c.slot_mapping[4].add_(1))),
    "a slot used twice": (
        "state.slot_mapping",
        lambda: _kv(lambda c: c.slot_mapping[4].copy_(c.slot_mapping[0])),
    ),
    "a write lost": ("state.kv_page_sum", lambda: _kv(_to_zero)),
    "a page changed": ("state.kv_page_sum", _kv_read),
    "a position": ("state.position_ledger", lambda: _kv(lambda c: c.position_ids[5].sub_(1))),
    "an unlikely token": ("semantic.sampler", _sampler),
    "a foreign mask": ("semantic.logit_processor", _processor),
    "lengths that end short": ("memory.cu_seqlens", _varlen),
    "a stale length": ("memory.cu_seqlens", _stale),
    "a collective": ("numerical.all_reduce", _all_reduce),
    "an id out of range": ("semantic.token_range", _embedding),
}
"""Name → the check that must fail, and the call."""
