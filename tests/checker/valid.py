"""Valid calls of every operator: what a check must be silent on, edges included.

A maker takes a generator and a floating dtype and returns one call. Every operator has an all-zero
row, one token, its largest shape and mixed lengths among its cases.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Generator

from tests.checker.calls import (
    additive,
    all_reduce,
    answer,
    as_written,
    attention,
    batch,
    computed,
    consecutive,
    drawn,
    embedding,
    integers,
    kv_read,
    kv_update,
    left_padded,
    linear,
    logit_processor,
    logits,
    one_setting_a_row,
    paged_tail,
    residual,
    rms_norm,
    rope,
    sampler,
    swiglu,
    taken_prefix,
    tokenizer,
    trusted,
    trusted_logits,
    varlen,
    weight,
)
from tocsin.core import calls
from tocsin.core.calls import Call
from tocsin.core.terms import Operator

Maker = Callable[[Generator, torch.dtype], Call]

_INF, _MIN = float("-inf"), -3.0e4

VALID: Mapping[Operator, Mapping[str, Maker]] = {
    Operator.TOKENIZER_OUTPUT: {
        "mixed lengths, left padding": lambda g, d: tokenizer(g, (3, 9, 1), "left"),
        "mixed lengths, right padding": lambda g, d: tokenizer(g, (3, 9, 1), "right"),
        "no mask": lambda g, d: tokenizer(g, (5, 5)),
        "one token": lambda g, d: tokenizer(g, (1,), "left"),
        "a row without tokens": lambda g, d: tokenizer(g, (0, 4), "left"),
        "largest": lambda g, d: tokenizer(g, (64,) * 8, "right"),
    },
    Operator.EMBEDDING: {
        "plain": lambda g, d: embedding(g, d, 3, 7),
        "one token": lambda g, d: embedding(g, d, 1),
        "three axes": lambda g, d: embedding(g, d, 2, 2, 3),
        "largest": lambda g, d: embedding(g, d, 16, 64),
    },
    Operator.ROPE: {
        "plain": lambda g, d: rope(g, d, consecutive(g, 2, 5)),
        "one token": lambda g, d: rope(g, d, consecutive(g, 1, 1)),
        "decode, mixed lengths": lambda g, d: rope(g, d, integers(g, 8192, 8, 1)),
        "left padding": lambda g, d: rope(g, d, torch.tensor([[1, 1, 0, 1, 2], [0, 1, 2, 3, 4]])),
        "partial rotation": lambda g, d: rope(g, d, consecutive(g, 2, 5), size=24, turned=8),
        "scaled table": lambda g, d: rope(g, d, consecutive(g, 2, 5), table_scale=1.17),
        "fp32 table": lambda g, d: rope(g, d, consecutive(g, 2, 5), table_dtype=torch.float32),
        "tiny": lambda g, d: rope(g, d, consecutive(g, 2, 5), scale=1e-5),
        "large": lambda g, d: rope(g, d, consecutive(g, 2, 5), scale=100.0),
        "largest": lambda g, d: rope(g, d, consecutive(g, 1, 130, 32768), (9, 3), 64),
    },
    Operator.RMS_NORM: {
        "plain": lambda g, d: rms_norm(g, d, 3, 4, 64),
        "one token": lambda g, d: rms_norm(g, d, 1, 576),
        "no batch axis": lambda g, d: rms_norm(g, d, 64),
        "one feature": lambda g, d: rms_norm(g, d, 3, 1),
        "small variance": lambda g, d: rms_norm(g, d, 8, 64, scale=1e-3),
        "large": lambda g, d: rms_norm(g, d, 8, 64, scale=300.0),
        "Gemma": lambda g, d: rms_norm(g, d, 3, 4, 64, gemma=True),
        "largest": lambda g, d: rms_norm(g, d, 64, 4096),
    },
    Operator.LINEAR: {
        "plain": lambda g, d: linear(g, d, (3, 4, 64), 256),
        "one token": lambda g, d: linear(g, d, (1, 576), 192),
        "no batch axis": lambda g, d: linear(g, d, (64,), 10),
        "one number": lambda g, d: linear(g, d, (1, 1), 1),
        "bias, odd blocks": lambda g, d: linear(g, d, (5, 48), 200, bias=True),
        "trusted, no two errors cancel": lambda g, d: trusted(
            linear(g, d, (5, 48), 200, bias=True)
        ),
        "small": lambda g, d: linear(g, d, (4, 64), 130, scale=1e-4),
        "large": lambda g, d: linear(g, d, (4, 64), 130, scale=300.0),
        "largest": lambda g, d: linear(g, d, (16, 1536), 576),
    },
    Operator.SWIGLU: {
        "plain": lambda g, d: swiglu(g, d, 3, 4, 64),
        "one token": lambda g, d: swiglu(g, d, 1, 1536),
        "GELU": lambda g, d: swiglu(g, d, 8, 64, activation="gelu"),
        "GELU, tanh": lambda g, d: swiglu(g, d, 8, 64, activation="gelu_tanh"),
        "fused": lambda g, d: swiglu(g, d, 8, 64, fused=True),
        "far ends": lambda g, d: swiglu(g, d, 8, 64, scale=12.0),
        "largest": lambda g, d: swiglu(g, d, 64, 1536),
    },
    Operator.RESIDUAL: {
        "plain": lambda g, d: residual(g, d, 3, 4, 64),
        "one token": lambda g, d: residual(g, d, 1, 576),
        "largest": lambda g, d: residual(g, d, 64, 4096),
    },
    Operator.ATTENTION: {
        "plain": lambda g, d: attention(g, d),
        "one token": lambda g, d: attention(g, d, (1, 1), rows=1),
        "causal": lambda g, d: attention(g, d, causal=True),
        "causal chunk": lambda g, d: attention(g, d, (4, 20), causal=True),
        "decode, mixed lengths": lambda g, d: attention(
            g, d, (1, 32), rows=4, mask=paged_tail((0, 7, 15, 30), 32)
        ),
        "decode, as written": lambda g, d: as_written(
            attention(g, d, (1, 32), rows=4, mask=paged_tail((0, 7, 15, 30), 32))
        ),
        "decode, as written, sharp": lambda g, d: as_written(
            attention(g, d, (1, 64), rows=3, mask=paged_tail((9, 63, 40), 64), size=64, sharp=4.0)
        ),
        "decode, as written, no mask": lambda g, d: as_written(
            attention(g, d, (1, 16), eager=True)
        ),
        "left padding": lambda g, d: attention(g, d, (8, 8), mask=left_padded(8, (3, 0))),
        "left padding, -inf": lambda g, d: attention(
            g, d, (8, 8), mask=additive(left_padded(8, (3, 0)), _INF)
        ),
        "left padding, eager floor": lambda g, d: attention(
            g, d, (8, 8), mask=additive(left_padded(8, (3, 0)), _MIN), eager=True
        ),
        "sliding window": lambda g, d: attention(
            g, d, (12, 12), mask=left_padded(12, (0,)) & left_padded(12, (0,)).mT.tril(3).mT
        ),
        "mask for each head": lambda g, d: attention(
            g, d, mask=left_padded(6, (0,)).expand(2, 4, 6, 6)
        ),
        "eager": lambda g, d: attention(g, d, causal=True, eager=True),
        "sharp": lambda g, d: attention(g, d, (16, 16), causal=True, sharp=4.0, eager=True),
        "sharp kernel": lambda g, d: attention(g, d, (16, 16), causal=True, sharp=4.0),
        "soft cap": lambda g, d: attention(g, d, causal=True, softcap=20.0, scale=0.5),
        "one head": lambda g, d: attention(g, d, heads=(1, 1), size=1),
        "largest": lambda g, d: attention(g, d, (32, 256), heads=(9, 3), causal=True, size=64),
    },
    Operator.FLASH_ATTN_VARLEN: {
        "metadata": lambda g, d: varlen(g, d, (1, 1, 1), (9, 1, 17), "none"),
        "packed": lambda g, d: varlen(g, d, (3, 5), (3, 5), "qkv"),
        "separate": lambda g, d: varlen(g, d, (1, 4), (7, 4), "q k v"),
        "computed": lambda g, d: computed(varlen(g, d, (1, 4), (7, 4), "q k v")),
        "one token": lambda g, d: varlen(g, d, (1,), (1,), "qkv"),
        "an empty sequence": lambda g, d: varlen(g, d, (3, 0, 2), (3, 0, 2), "q k v"),
        "largest": lambda g, d: varlen(g, d, (64,) * 8, (256,) * 8, "q k v"),
    },
    Operator.KV_UPDATE: {
        "decode, mixed lengths, an idle row": lambda g, d: kv_update(g, d, (3, 0, 9, 4), 1),
        "prefill": lambda g, d: kv_update(g, d, (6,), 6),
        "one token": lambda g, d: kv_update(g, d, (1,), 1),
        "left padding": lambda g, d: kv_update(g, d, (2, 5), 5, (3, 0)),
        "right padding": lambda g, d: kv_update(g, d, (2, 5), 5, (3, 0), "right"),
        "largest": lambda g, d: kv_update(g, d, (64,) * 8, 32),
    },
    Operator.KV_READ: {
        "mixed lengths": lambda g, d: kv_read(g, (3, 1, 5)),
        "shared prefix": lambda g, d: kv_read(g, (3, 4, 2), shared=2),
        "one page": lambda g, d: kv_read(g, (1,)),
        "nothing in use": lambda g, d: kv_read(g, (0, 0)),
        "an idle row": lambda g, d: kv_read(g, (2, 0, 3)),
        "a prefix was taken": lambda g, d: taken_prefix(g, kv_read(g, (3, 4, 2), shared=2)),
        "largest": lambda g, d: kv_read(g, (32,) * 8, shared=4),
    },
    Operator.BATCH: {
        "decode": lambda g, d: batch(g, 8, 1),
        "prefill": lambda g, d: batch(g, 1, 32),
        "one token": lambda g, d: batch(g, 1, 1),
    },
    Operator.LOGITS: {
        "plain": lambda g, d: logits(g, d, 2, 3),
        "one token": lambda g, d: logits(g, d, 1),
        "trusted": lambda g, d: trusted_logits(logits(g, d, 2, 3)),
        "largest": lambda g, d: logits(g, d, 64),
    },
    Operator.LOGIT_PROCESSOR: {
        "allowed set": lambda g, d: logit_processor(g, d, 4, _INF),
        "lowest number": lambda g, d: logit_processor(g, d, 4, 0.0),
        "no allowed set": lambda g, d: logit_processor(g, d, 1, _INF, allowed=False),
    },
    Operator.SAMPLER: {
        "greedy": lambda g, d: sampler(g, d, 4, 0.0),
        "sampled": lambda g, d: sampler(g, d, 4, 0.7),
        "drawn": lambda g, d: drawn(g, one_setting_a_row(sampler(g, d, 4, 0.7))),
        "one setting a row": lambda g, d: one_setting_a_row(sampler(g, d, 4, 0.7)),
        "top k": lambda g, d: sampler(g, d, 4, 1.3, top_k=5),
        "one row": lambda g, d: sampler(g, d, 1, 1.0),
    },
    Operator.ALL_REDUCE: {
        "plain": lambda g, d: all_reduce(g, d, 4, 3, 64),
        "one rank": lambda g, d: all_reduce(g, d, 1, 64),
        "largest": lambda g, d: all_reduce(g, d, 8, 32, 576),
    },
    Operator.STRUCTURED_OUTPUT: {
        "whole": lambda g, d: answer('{"city": "Trier", "degrees": -3.5}'),
        "smallest": lambda g, d: answer('{"city":""}'),
    },
    Operator.WEIGHT: {
        "plain": lambda g, d: weight(g, 7),
        "one weight": lambda g, d: weight(g, 1),
    },
    Operator.DEVICE_MEMORY: {
        "exactly enough": lambda g, d: calls.DeviceMemoryCall(
            free_bytes=2 << 30, total_bytes=4 << 30
        ),
        "plenty": lambda g, d: calls.DeviceMemoryCall(free_bytes=1 << 40, total_bytes=1 << 41),
    },
}
"""Operator → name of a case → its maker."""
