"""Faulty calls: for each check, the faults by name that it must see, in every dtype.

A fault takes a valid call and changes it. The bits are those that matter: the sign, the top
exponent bit (a number explodes), a low exponent bit (a number grows or vanishes), infinity and
NaN; and for each numerical check one more, with a second, larger fault in its input or output,
that tries to widen the limit until the first goes unseen.
"""

from collections.abc import Mapping
from typing import Any

import torch

from tests.checker import faulty_written
from tests.checker.calls import SCHEMA
from tests.checker.changes import (
    Fault,
    Place,
    assign,
    both,
    flip,
    huge_row,
    moved,
    number_faults,
    on,
    put,
    scaled,
)
from tocsin.core.terms import Operator

_ROPE, _NORM = (Operator.ROPE, "plain"), (Operator.RMS_NORM, "plain")
_LINEAR, _SWIGLU = (Operator.LINEAR, "plain"), (Operator.SWIGLU, "plain")
_ATTENTION = (Operator.ATTENTION, "causal")
_DECODE = (Operator.KV_UPDATE, "decode, mixed lengths, an idle row")
_READ = (Operator.KV_READ, "mixed lengths")
_TAKEN = (Operator.KV_READ, "a prefix was taken")
_BATCH = (Operator.BATCH, "decode")
_VARLEN = (Operator.FLASH_ATTN_VARLEN, "separate")


def _wrong_page(call: Any) -> None:
    call.pages[0] = call.pages[-1]
    call.owners[0] = call.owners[-1]


def _scramble_position(call: Any) -> None:
    """The table of other positions than those that the ledger names."""
    call.position_ids = call.position_ids + 1


FAULTS: Mapping[str, Mapping[str, tuple[Place, Fault]]] = {
    "numerical.finite": {
        "linear NaN": (_LINEAR, on("output", put, torch.nan)),
        "linear infinity": (_LINEAR, on("output", put, -torch.inf)),
        "attention NaN": (_ATTENTION, on("output", put, torch.nan)),
        "rope k infinity": (_ROPE, on("k_out", put, torch.inf)),
        "new key NaN": (_DECODE, on("new_key", put, torch.nan)),
        "input NaN, no output": (_NORM, both(on("x", put, torch.nan), assign(output=None))),
        "embedding": ((Operator.EMBEDDING, "plain"), on("output", put, torch.nan)),
        "residual": ((Operator.RESIDUAL, "plain"), on("output", put, torch.nan)),
        "SwiGLU": (_SWIGLU, on("output", put, torch.inf)),
        "logits": ((Operator.LOGITS, "plain"), on("logits", put, torch.nan)),
        "all-reduce": ((Operator.ALL_REDUCE, "plain"), on("output", put, torch.nan)),
        "varlen": (_VARLEN, on("output", put, torch.nan)),
    },
    "numerical.rope_norm": {
        **{
            name: (_ROPE, fault)
            for name, fault in number_faults("q_out").items()
            if name != "sign"  # the length of a pair does not know signs
        },
        "k explodes": (_ROPE, on("k_out", flip, 1)),
        "all zero": (_ROPE, assign(q_out=torch.zeros_like)),
        "wrong scale": (_ROPE, assign(q_out=scaled(1.1))),
        "not rotated by a scaled table": (
            (Operator.ROPE, "scaled table"),
            lambda call: setattr(call, "q_out", call.q),
        ),
    },
    "numerical.rope_signed_sum": {
        **{name: (_ROPE, fault) for name, fault in number_faults("k_out").items()},
        "turned back": (_ROPE, assign(q_out=scaled(-1.0))),
        "rotated with another table": (_ROPE, assign(cos=scaled(0.9))),
        "a large input does not widen it": (
            (Operator.ROPE, "left padding"),
            both(on("q_out", flip, 0), huge_row("q_out")),
        ),
    },
    "numerical.rope_table": {
        "position off by one": (_ROPE, _scramble_position),
        "one cosine flips": (_ROPE, on("cos", flip, 0)),
        "one sine explodes": (_ROPE, on("sin", flip, 1)),
        "NaN": (_ROPE, on("cos", put, torch.nan)),
        "frequencies change": (_ROPE, assign(inv_freq=scaled(0.25))),
        "angles in low precision": (
            _ROPE,
            assign(
                cos=lambda cos: (torch.arccos(cos.float()).bfloat16() * 1.02).cos().to(cos.dtype)
            ),
        ),
        "norm kept, table foreign": (
            _ROPE,
            assign(cos=lambda c: c.flip(1), sin=lambda s: s.flip(1)),
        ),
    },
    "numerical.rms_range": {
        "explodes": (_NORM, on("output", flip, 1)),
        "infinity": (_NORM, on("output", put, torch.inf)),
        "NaN": (_NORM, on("output", put, torch.nan)),
        "all zero": (_NORM, assign(output=torch.zeros_like)),
        "eps raised": ((Operator.RMS_NORM, "small variance"), assign(eps=1e-4)),
        "scale off": (_NORM, assign(output=scaled(1.05))),
        "squares overflow": (_NORM, huge_row("output")),
        "weight changed since": (
            _NORM,
            lambda call: assign(weight_trusted=call.weight * 1.1)(call),
        ),
    },
    "numerical.rms_dot": {
        **{name: (_NORM, fault) for name, fault in number_faults("output").items()},
        "whole row negated": (_NORM, assign(output=scaled(-1.0))),
        "sign, beside a huge number": (_NORM, both(on("output", flip, 0), huge_row("output"))),
    },
    "numerical.linear_checksum": {
        **{name: (_LINEAR, fault) for name, fault in number_faults("output").items()},
        "weight changed since": (_LINEAR, lambda call: _trusted_then_changed(call)),
        "bias forgotten": (
            (Operator.LINEAR, "bias, odd blocks"),
            lambda call: call.output.sub_(call.bias),
        ),
        "two rows swapped": (_LINEAR, assign(output=lambda y: y.flip(0))),
        "sign, beside a huge number": (_LINEAR, both(on("output", flip, 0), huge_row("output"))),
        "input explodes after the product": (_LINEAR, huge_row("x")),
    },
    "numerical.swiglu": {
        **{name: (_SWIGLU, fault) for name, fault in number_faults("output").items()},
        "another activation": ((Operator.SWIGLU, "GELU"), assign(activation="silu")),
        "up forgotten": (_SWIGLU, assign(output=lambda y: y.abs())),
        "input explodes after the product": (_SWIGLU, huge_row("up")),
    },
    "numerical.residual": {
        **{
            name: ((Operator.RESIDUAL, "plain"), fault)
            for name, fault in number_faults("output").items()
        },
        "add forgotten": (
            (Operator.RESIDUAL, "plain"),
            lambda call: setattr(call, "output", call.x),
        ),
        "one bit of the mantissa": ((Operator.RESIDUAL, "plain"), on("output", flip, 11)),
    },
    "numerical.attention_hull": {
        "explodes": (_ATTENTION, on("output", flip, 1)),
        "infinity": (_ATTENTION, on("output", put, torch.inf)),
        "NaN": (_ATTENTION, on("output", put, torch.nan)),
        "mean of everything, twice": (_ATTENTION, assign(output=scaled(3.0))),
        "stale values": ((Operator.ATTENTION, "decode, mixed lengths"), assign(v=scaled(0.1))),
    },
    "numerical.attention_row_sum": {
        **{name: (_ATTENTION, fault) for name, fault in number_faults("output").items()},
        "a key flips": (_ATTENTION, on("k", flip, 0)),
        "a value vanishes": (_ATTENTION, on("v", put, 0.0)),
        "causal corner": ((Operator.ATTENTION, "causal chunk"), lambda call: _top_left(call)),
        "mask ignored": (
            (Operator.ATTENTION, "decode, mixed lengths"),
            lambda call: _without_mask(call),
        ),
        "wrong scale": (_ATTENTION, assign(scale=1.0)),
        "soft cap forgotten": (
            (Operator.ATTENTION, "soft cap"),
            assign(softcap=1.0, lse=None),
        ),
        "lse of another row": ((Operator.ATTENTION, "eager"), assign(lse=lambda lse: lse + 1)),
        "rows swapped": (_ATTENTION, assign(output=lambda o: o.flip(0))),
        "sign, beside a huge number": (
            _ATTENTION,
            both(on("output", flip, 0), huge_row("output")),
        ),
    },
    "numerical.attention_mask": {
        "query without keys": (
            (Operator.ATTENTION, "left padding"),
            lambda call: call.mask[1, 0, -1].fill_(False),
        ),
        "nothing allowed in decoding": (
            (Operator.ATTENTION, "decode, mixed lengths"),
            lambda call: call.mask[2].fill_(False),
        ),
        "padding written": (
            (Operator.ATTENTION, "left padding"),
            lambda call: call.output[0, :, 0].fill_(1.0),
        ),
        "polarity": ((Operator.ATTENTION, "left padding"), assign(mask=lambda mask: ~mask)),
        "zeros and ones added": (
            (Operator.ATTENTION, "left padding"),
            lambda call: assign(mask=call.mask.to(call.q.dtype))(call),
        ),
        "NaN": (
            (Operator.ATTENTION, "left padding, -inf"),
            on("mask", put, torch.nan, 0),
        ),
    },
    "numerical.logits_bound": {
        "explodes": ((Operator.LOGITS, "plain"), on("logits", flip, 1)),
        "infinity": ((Operator.LOGITS, "plain"), on("logits", put, -torch.inf)),
        "NaN": ((Operator.LOGITS, "plain"), on("logits", put, torch.nan)),
        "not finite, nothing known": (
            (Operator.LOGITS, "plain"),
            both(on("logits", put, torch.inf), assign(hidden=None, weight=None)),
        ),
        "above the cap": ((Operator.LOGITS, "plain"), assign(softcap=5.0)),
        "hidden state is lost": ((Operator.LOGITS, "plain"), assign(hidden=torch.zeros_like)),
        "hidden state overflows": ((Operator.LOGITS, "plain"), assign(hidden=scaled(torch.inf))),
    },
    "numerical.all_reduce": {
        **{
            name: ((Operator.ALL_REDUCE, "plain"), fault)
            for name, fault in number_faults("output").items()
        },
        "a rank counts twice": (
            (Operator.ALL_REDUCE, "plain"),
            lambda call: call.output.add_(call.partials[0]),
        ),
        "a rank is missing": (
            (Operator.ALL_REDUCE, "plain"),
            lambda call: call.output.sub_(call.partials[-1]),
        ),
    },
    "memory.cu_seqlens": {
        "decreasing": (_VARLEN, lambda call: call.cu_seqlens_k.copy_(torch.tensor([0, 12, 11]))),
        "starts late": (_VARLEN, moved("cu_seqlens_q", 0, 1)),
        "ends short": (_VARLEN, moved("cu_seqlens_k", -1, -1)),
        "ends beyond": (_VARLEN, moved("cu_seqlens_k", -1, 1)),
        "longest too small": (_VARLEN, assign(max_seqlen_k=6)),
        "longest negative": (_VARLEN, assign(max_seqlen_q=-1)),
        "int64": (_VARLEN, assign(cu_seqlens_q=lambda cu: cu.long())),
        "float": (_VARLEN, assign(cu_seqlens_q=lambda cu: cu.float())),
        "one row more": (_VARLEN, assign(cu_seqlens_k=lambda cu: torch.cat((cu, cu[-1:])))),
        "empty": (_VARLEN, assign(cu_seqlens_k=lambda cu: cu[:0])),
        "wrapped": (_VARLEN, lambda call: call.cu_seqlens_k.copy_(torch.tensor([0, 7, -11]))),
        "metadata alone": (
            (Operator.FLASH_ATTN_VARLEN, "metadata"),
            moved("cu_seqlens_k", 1, 3),
        ),
    },
    "memory.tensor_contract": {
        "dtypes differ": (_LINEAR, assign(weight=lambda w: w.double())),
        "integers": (_NORM, assign(x=lambda x: x.int())),
        "columns strided": (_ATTENTION, assign(k=lambda k: k.mT.contiguous().mT)),
        "heads do not divide": (_ATTENTION, assign(q=lambda q: q[:, :3])),
        "weight transposed": ((Operator.LINEAR, "one token"), assign(weight=lambda w: w.T)),
        "mask of integers": (
            (Operator.ATTENTION, "left padding"),
            assign(mask=lambda mask: mask.int()),
        ),
        "ids of floats": ((Operator.EMBEDDING, "plain"), assign(input_ids=lambda i: i.float())),
        "other shape": ((Operator.RESIDUAL, "plain"), assign(delta=lambda d: d[:1])),
        "slots missing": (_DECODE, assign(slot_mapping=lambda s: s[:-1])),
        "qkv of two": (
            (Operator.FLASH_ATTN_VARLEN, "packed"),
            assign(qkv=lambda t: t[:, :2]),
        ),
    },
    "memory.watermark": {
        "a byte too few": (
            (Operator.DEVICE_MEMORY, "exactly enough"),
            assign(free_bytes=(2 << 30) - 512),
        ),
        "nothing": ((Operator.DEVICE_MEMORY, "plenty"), assign(free_bytes=0)),
        "less than nothing": ((Operator.DEVICE_MEMORY, "plenty"), assign(free_bytes=-1)),
    },
    "state.kv_page_sum": {
        "a bit": (_READ, lambda call: call.sums.view(-1)[3].bitwise_xor_(torch.tensor(1))),
        "the sign": (_READ, lambda call: call.sums.view(-1)[0].neg_()),
        "another page": (_READ, lambda call: call.sums[0].copy_(call.sums[1])),
        "write lost": (_DECODE, lambda call: _rewrite(call, 0.0)),
        "negative zero": (_DECODE, lambda call: _negative_zero(call)),
        "write elsewhere": (_DECODE, assign(slot_mapping=lambda s: s.roll(1))),
    },
    "state.page_owner": {
        "foreign": (_READ, lambda call: call.owners[0].fill_(2)),
        "freed": (_READ, lambda call: call.owners[0].fill_(-2)),
        "shared became private": (
            (Operator.KV_READ, "shared prefix"),
            lambda call: call.owners[0].fill_(1),
        ),
        "one page in two rows": (_READ, lambda call: call.pages[0].copy_(call.pages[-1])),
        "one page twice in a row": (_READ, lambda call: call.pages[0].copy_(call.pages[1])),
        "aliased with its tag": (_READ, _wrong_page),
    },
    "state.page_epoch": {
        "epoch": (_READ, moved("epochs", 0, 1)),
        "first position": (_READ, moved("first_positions", 1, 16)),
        "length": (_READ, moved("lengths", -1, -1)),
    },
    "state.prefix_tokens": {
        "another token": (_TAKEN, moved("prefixes", 1, 1)),
        "an earlier token": (_TAKEN, lambda call: call.prefixes[1, :1].add_(1)),
        "a shorter prefix": (_TAKEN, lambda call: call.prefixes[1, -1:].fill_(-1)),
        "no longer in the index": (_TAKEN, lambda call: call.prefixes[0].fill_(-1)),
    },
    "state.slot_mapping": {
        "off by one": (_DECODE, moved("slot_mapping", 0, 1)),
        "another row's slot": (
            _DECODE,
            lambda call: call.slot_mapping[0].copy_(call.slot_mapping[2]),
        ),
        "beyond the pool": (_DECODE, lambda call: call.slot_mapping[0].fill_(10**6)),
        "below the pool": (_DECODE, lambda call: call.slot_mapping[0].fill_(-2)),
        "token lost": (_DECODE, lambda call: call.slot_mapping[0].fill_(-1)),
        "hole in a prefill": (
            (Operator.KV_UPDATE, "prefill"),
            lambda call: call.slot_mapping[2].fill_(-1),
        ),
        "table and slot of another's page": (_DECODE, lambda call: _aliased(call)),
        "freed page": (_DECODE, lambda call: call.owners[call.block_table[0, 0]].fill_(-1)),
        "no page": (_DECODE, lambda call: call.block_table[0].fill_(-1)),
        "idle row writes": (_DECODE, lambda call: call.slot_mapping[1].fill_(0)),
        "row that is none": (_DECODE, assign(token_rows=torch.tensor([0, 1, 2, 9]))),
    },
    "state.position_ledger": {
        "batch, off by one": (_BATCH, moved("position_ids", 3, 1)),
        "update, off by one": (_DECODE, moved("position_ids", 0, 1)),
        "left padding, tensor length": (
            (Operator.KV_UPDATE, "left padding"),
            lambda call: call.position_ids.copy_(torch.arange(5).repeat(2)),
        ),
        "prefill reversed": (
            (Operator.KV_UPDATE, "prefill"),
            assign(position_ids=lambda p: p.flip(0)),
        ),
        "length not advanced": (_DECODE, moved("seq_lens", 2, -1)),
    },
    "state.kv_shape": {
        "fewer value heads": (_ATTENTION, assign(v=lambda v: v[:, :1])),
        "other head size": (_ATTENTION, assign(v=lambda v: v[..., :8], output=None)),
        "shorter values": (_VARLEN, assign(v=lambda v: v[:-1])),
        "cache of other shape": (_DECODE, assign(value_cache=lambda v: v[..., :4])),
        "new of other heads": (_DECODE, assign(new_value=lambda v: v[:, :1])),
    },
    "state.weight_sum": {
        "a bit": (
            (Operator.WEIGHT, "plain"),
            lambda call: call.sums[2].bitwise_xor_(torch.tensor(1)),
        ),
        "two swapped": ((Operator.WEIGHT, "plain"), assign(sums=lambda sums: sums.flip(0))),
    },
    "semantic.token_range": {
        "first beyond": (
            (Operator.EMBEDDING, "plain"),
            lambda call: call.input_ids[0, 0].fill_(50),
        ),
        "placeholder": (_BATCH, lambda call: call.input_ids[2].fill_(-1)),
        "batch, beyond": (_BATCH, lambda call: call.input_ids[2].fill_(100)),
        "tokenizer": (
            (Operator.TOKENIZER_OUTPUT, "no mask"),
            lambda call: call.input_ids[0, 0].fill_(100),
        ),
    },
    "semantic.token_ledger": {
        "foreign": (_BATCH, lambda call: call.input_ids[0].add_(1).remainder_(100)),
        "the one before again": (_BATCH, lambda call: call.input_ids.copy_(call.input_ids.roll(1))),
    },
    "semantic.tokenizer_output": {
        "mask of two": (
            (Operator.TOKENIZER_OUTPUT, "mixed lengths, left padding"),
            lambda call: call.attention_mask[1, -1].fill_(2),
        ),
        "hole": (
            (Operator.TOKENIZER_OUTPUT, "mixed lengths, left padding"),
            lambda call: call.attention_mask[1, 4].fill_(0),
        ),
        "positions count padding": (
            (Operator.TOKENIZER_OUTPUT, "mixed lengths, left padding"),
            lambda call: call.position_ids.copy_(torch.arange(9).repeat(3, 1)),
        ),
        "positions start at one": (
            (Operator.TOKENIZER_OUTPUT, "no mask"),
            assign(position_ids=lambda p: p + 1),
        ),
        "too long": ((Operator.TOKENIZER_OUTPUT, "no mask"), assign(max_length=4)),
        "mask of other shape": (
            (Operator.TOKENIZER_OUTPUT, "mixed lengths, right padding"),
            assign(attention_mask=lambda mask: mask[:, 1:]),
        ),
        "mask of floats": (
            (Operator.TOKENIZER_OUTPUT, "mixed lengths, right padding"),
            assign(attention_mask=lambda mask: mask.float()),
        ),
    },
    "semantic.sampler": {
        **faulty_written.SAMPLER,
        "negative": ((Operator.SAMPLER, "sampled"), on("probs", put, -0.5)),
        "sum": ((Operator.SAMPLER, "sampled"), assign(probs=scaled(1.1))),
        "NaN": ((Operator.SAMPLER, "sampled"), on("probs", put, torch.nan)),
        "id beyond": ((Operator.SAMPLER, "sampled"), lambda call: call.token_ids[0].fill_(40)),
        "id impossible": (
            (Operator.SAMPLER, "top k"),
            lambda call: call.token_ids[1].copy_(call.probs[1].argmin()),
        ),
        "greedy, not the likeliest": (
            (Operator.SAMPLER, "greedy"),
            lambda call: call.token_ids[1].copy_(call.probs[1].argmin()),
        ),
        "temperature NaN": ((Operator.SAMPLER, "sampled"), assign(temperature=float("nan"))),
        "temperature negative": ((Operator.SAMPLER, "sampled"), assign(temperature=-1.0)),
        "temperature tiny": ((Operator.SAMPLER, "sampled"), assign(temperature=1e-12)),
        "top_p zero": ((Operator.SAMPLER, "sampled"), assign(top_p=0.0)),
        "top_p NaN": (
            (Operator.SAMPLER, "sampled"),
            assign(top_p=torch.tensor([0.9, 1, 1, torch.nan])),
        ),
        "top_k zero": ((Operator.SAMPLER, "sampled"), assign(top_k=0)),
        "top_k beyond": ((Operator.SAMPLER, "sampled"), assign(top_k=2**30)),
        "top_k not applied": ((Operator.SAMPLER, "sampled"), assign(top_k=5)),
    },
    "semantic.logit_processor": {
        "raised": ((Operator.LOGIT_PROCESSOR, "allowed set"), on("after", put, 9.0, 7)),
        "kept one changed": (
            (Operator.LOGIT_PROCESSOR, "no allowed set"),
            on("after", put, -9.0, 7),
        ),
        "nothing left": (
            (Operator.LOGIT_PROCESSOR, "no allowed set"),
            assign(after=lambda after: torch.full_like(after, -torch.inf)),
        ),
        "mask of another row": (
            (Operator.LOGIT_PROCESSOR, "allowed set"),
            assign(allowed=lambda allowed: allowed.flip(0)),
        ),
        "NaN": ((Operator.LOGIT_PROCESSOR, "allowed set"), on("after", put, torch.nan, 7)),
        "infinity": ((Operator.LOGIT_PROCESSOR, "no allowed set"), on("after", put, torch.inf, 7)),
    },
    "semantic.structured_output": {
        name: ((Operator.STRUCTURED_OUTPUT, "whole"), assign(text=text, json_schema=schema))
        for name, text, schema in (
            ("cut off", '{"city": "Tri', SCHEMA),
            ("empty", "", SCHEMA),
            ("required missing", '{"degrees": 1}', SCHEMA),
            ("wrong type", '{"city": 3}', SCHEMA),
            ("one more", '{"city": "", "x": 1}', SCHEMA),
            ("two answers", '{"city": ""}{"city": ""}', SCHEMA),
            ("NaN", '{"city": "", "degrees": NaN}', SCHEMA),
            ("deep", "[" * 100_000, SCHEMA),
            ("schema is none", '{"city": ""}', {"type": "objekt"}),
            ("schema elsewhere", "{}", {"$ref": "https://example.invalid/schema"}),
            ("schema never ends", "{}", {"$ref": "#"}),
        )
    },
    **faulty_written.FAULTS,
}
"""Check id → name of a fault → the valid call it starts from, and the change."""


def _trusted_then_changed(call: Any) -> None:
    from tocsin.checker.checks.numerical.linear_checksum import checksums

    sums, norms, _, _ = checksums(call)
    call.block_sums, call.block_norms = sums.clone(), norms.clone()
    flip(call.weight, 1, 5)
    call.output = torch.nn.functional.linear(call.x, call.weight)


def _top_left(call: Any) -> None:
    """Causality aligned at the wrong corner: early keys only."""
    queries, keys = call.q.shape[2], call.k.shape[2]
    mask = torch.ones(queries, keys, dtype=torch.bool).tril()
    call.output = torch.nn.functional.scaled_dot_product_attention(
        call.q, call.k, call.v, attn_mask=mask, enable_gqa=True
    )


def _without_mask(call: Any) -> None:
    call.output = torch.nn.functional.scaled_dot_product_attention(
        call.q, call.k, call.v, enable_gqa=True
    )


def _rewrite(call: Any, value: float) -> None:
    call.key_cache.flatten(0, 1)[call.slot_mapping[0]] = value


def _negative_zero(call: Any) -> None:
    call.new_value[0, 0, 0] = 0.0
    call.value_cache.flatten(0, 1)[call.slot_mapping[0]] = call.new_value[0]
    call.value_cache.flatten(0, 1)[call.slot_mapping[0], 0, 0] = -0.0


def _aliased(call: Any) -> None:
    """Row 0's table names row 2's page, and the slot follows the table."""
    call.block_table[0, 0] = call.block_table[2, 0]
    call.slot_mapping[0] = call.block_table[0, 0] * 4 + call.position_ids[0] % 4
