"""What each check claims to see: where, which classes of fault, and who sees the rest.

A class is what becomes of one number or word: its largest exponent bit set (`exponent-max`), its
sign turned (`sign`), zero instead (`vanishing`), infinity or NaN. An integer has no exponent: its
second highest bit is turned instead; a truth value is turned, whatever the class.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tests.checker.silent import Witness, as_linear, as_sequences, as_tiles, same
from tocsin.checker.masks import causal_keys
from tocsin.core.calls import Call
from tocsin.core.terms import Operator

CLASSES = ("exponent-max", "sign", "vanishing", "Inf", "NaN")
SMALL = ("sign", "vanishing")
FINITE = ("exponent-max", "sign", "vanishing")

Weight = Callable[[Any], Tensor]
"""How much each element of a field matters: [shape of the field], not negative."""


@dataclass(frozen=True)
class Field:
    """One tensor of a call that the rule of a check reads.

    Attributes:
        weight: how much each element matters; None: its magnitude.
        invisible: class → who else sees it, or why nobody has to.
    """

    weight: Weight | None = None
    invisible: Mapping[str, "Witness | str"] = ()  # type: ignore[assignment]


@dataclass(frozen=True)
class Claim:
    """One kind of call at which a check is held to what it says."""

    operator: Operator
    case: str
    fields: Mapping[str, Field]


def _of(*classes: str, by: "Witness | str") -> Mapping[str, "Witness | str"]:
    return dict.fromkeys(classes, by)


def _claims(operator: Operator, case: str, /, **fields: Field) -> Claim:
    return Claim(operator, case, fields)


def _plain(*names: str) -> dict[str, Field]:
    return dict.fromkeys(names, Field())


# --- which element matters ----------------------------------------------------------------------


def _flow(call: Any) -> tuple[Tensor, Tensor]:
    """Attention's weights [R,K,G,S,L] and how much each score moves the sum of the features."""
    kv = call.k.shape[1]
    q = call.q.double().unflatten(1, (kv, -1))
    scores = q @ call.k.double()[:, :, None].mT * call.q.shape[-1] ** -0.5
    if call.mask is not None:
        scores = scores.masked_fill(~call.mask[:, :, None], -torch.inf)
    if call.causal:
        scores = scores.masked_fill(~causal_keys(*scores.shape[-2:], scores.device), -torch.inf)
    p = scores.softmax(-1)
    sums = call.v.double().sum(-1)[:, :, None, None]
    return p, p * (sums - (p * sums).sum(-1, keepdim=True)).abs()


def _by_query(call: Any) -> Tensor:
    _, moved = _flow(call)
    spread = (moved[..., None] * call.k.double().abs()[:, :, None, None]).amax(dim=-2)
    return call.q.double().abs() * spread.flatten(1, 2)


def _by_key(call: Any) -> Tensor:
    _, moved = _flow(call)
    q = call.q.double().abs().unflatten(1, (call.k.shape[1], -1))
    reach = (moved[..., None] * q[..., None, :]).amax(dim=(2, 3))
    return call.k.double().abs() * reach


def _by_mask(call: Any) -> Tensor:
    _, moved = _flow(call)
    return moved.nan_to_num(0.0).amax(dim=(1, 2))[:, None]


def _seen_key(call: Any) -> Tensor:
    """A key that a query may attend to, through the feature that the query looks at."""
    seen = torch.ones_like(call.k[..., :1]) if call.mask is None else call.mask[:, :, 0, :, None]
    q = call.q.double().abs().unflatten(1, (call.k.shape[1], -1)).amin(dim=(2, 3))
    return call.k.double().abs() * seen * q[:, :, None]


def _by_value(call: Any) -> Tensor:
    p, _ = _flow(call)
    return call.v.double().abs() * p.amax(dim=(2, 3))[..., None]


def _by_value_sum(call: Any) -> Tensor:
    p, _ = _flow(call)
    return call.value_sums.double().abs() * p.amax(dim=(2, 3))


def _live(call: Any) -> Tensor:
    """Rows with a past: those whose only key is the first one have all its weight anyway."""
    return call.key_sums.abs() * call.q.double().abs().unflatten(1, (call.k.shape[1], -1)).amin(
        dim=(2, 3)
    )


def _by_input(call: Any) -> Tensor:
    """Elements of x by what they add to some block's sum."""
    sums = call.weight.double().abs() if call.block_sums is None else call.block_sums.double()
    return call.x.double().abs() * sums.abs().amax(dim=0)


def _by_weight(call: Any) -> Tensor:
    return call.weight.double().abs() * call.x.double().abs().flatten(0, -2).amax(dim=0)


def _by_output(call: Any) -> Tensor:
    return call.output.double().abs()


def _by_head(call: Any) -> Tensor:
    return call.hidden.double().abs() * call.weight.double().sum(dim=0).abs()


def _inner_tokens(call: Any) -> Tensor:
    """Real tokens between two others: a text without its first or last one is a shorter text."""
    mask = functional.pad(call.attention_mask.double(), (1, 1))
    return mask[:, 1:-1] * mask[:, :-2] * mask[:, 2:]


def _by_block(call: Any) -> Tensor:
    return call.block_sums.double().abs() * call.x.double().abs().flatten(0, -2).amax(dim=0)


def _winner(call: Any) -> Tensor:
    top = call.logits.amax(dim=-1, keepdim=True)
    return torch.where((call.logits == top) & (top > 0), call.logits.double(), 0.0)


def _winner_hidden(call: Any) -> Tensor:
    return call.hidden.double().abs() * call.weight[call.logits.argmax(-1)].double().abs()


def _winner_row(call: Any) -> Tensor:
    rows = torch.zeros_like(call.weight, dtype=torch.float64)
    for hidden, winner in zip(
        call.hidden.flatten(0, -2), call.logits.argmax(-1).flatten(), strict=True
    ):
        rows[winner] = torch.maximum(rows[winner], hidden.double().abs())
    return call.weight.double().abs() * rows


def _winner_sum(call: Any) -> Tensor:
    won = torch.zeros_like(call.weight_row_sums)
    won[call.logits.argmax(-1).flatten()] = 1
    return call.weight_row_sums.abs() * won


def _looked_up(call: Any) -> Tensor:
    used = torch.zeros(call.weight.shape[0], 1, dtype=torch.float64)
    used[call.input_ids.flatten()] = 1
    return call.weight.double().abs() * used


def _used_slots(call: Any, cache: str) -> Tensor:
    held = getattr(call, cache)
    used = torch.zeros(held.shape[:2]).flatten()
    used[call.slot_mapping[call.slot_mapping >= 0]] = 1
    return held.double().abs() * used.view(held.shape[:2])[..., None, None]


def _real_tokens(call: Any, field: str) -> Tensor:
    values = getattr(call, field).double().abs() + 1
    real = (call.slot_mapping >= 0).double()
    return values * real.view(-1, *(1,) * (values.ndim - 1))


def _ones(field: str) -> Weight:
    return lambda call: torch.ones_like(getattr(call, field), dtype=torch.float64)


def _nonzero(field: str) -> Weight:
    return lambda call: (getattr(call, field) != 0).double()


# --- the claims ---------------------------------------------------------------------------------

_RANGE = "a number of the range of its dtype: size is not this check's, only whether it is one"
_NARROWS = "only narrows the limit: a false alarm at worst, never a missed one"
_OUTPUTS: Mapping[Operator, tuple[str, tuple[str, ...], Witness]] = {
    Operator.EMBEDDING: ("plain", ("output",), same("numerical.embedding_rows")),
    Operator.ROPE: ("plain", ("q_out", "k_out"), same("numerical.rope_signed_sum")),
    Operator.RMS_NORM: ("plain", ("output",), same("numerical.rms_dot")),
    Operator.LINEAR: ("plain", ("output",), same("numerical.linear_checksum")),
    Operator.SWIGLU: ("plain", ("output",), same("numerical.swiglu")),
    Operator.RESIDUAL: ("plain", ("output",), same("numerical.residual")),
    Operator.ATTENTION: ("causal", ("output",), same("numerical.attention_row_sum")),
    Operator.FLASH_ATTN_VARLEN: ("computed", ("output",), as_sequences),
    Operator.KV_UPDATE: ("prefill", ("new_key", "new_value"), same("state.kv_page_sum")),
    Operator.LOGITS: ("trusted", ("logits",), as_linear),
    Operator.ALL_REDUCE: ("plain", ("output",), same("numerical.all_reduce")),
}

CLAIMS: Mapping[str, tuple[Claim, ...]] = {
    "numerical.finite": tuple(
        Claim(operator, case, {name: Field(invisible=_of(*FINITE, by=witness)) for name in names})
        for operator, (case, names, witness) in _OUTPUTS.items()
    ),
    "numerical.embedding_rows": (
        _claims(
            Operator.EMBEDDING,
            "plain",
            output=Field(),
            weight=Field(_looked_up),
            input_ids=Field(),
        ),
    ),
    "numerical.rope_norm": (
        _claims(
            Operator.ROPE,
            "plain",
            **dict.fromkeys(
                ("q", "k", "q_out", "k_out"),
                Field(invisible=_of("sign", by=same("numerical.rope_signed_sum"))),
            ),
        ),
    ),
    "numerical.rope_signed_sum": (
        _claims(Operator.ROPE, "plain", **_plain("q", "k", "q_out", "k_out", "cos", "sin")),
    ),
    "numerical.rope_table": (
        _claims(Operator.ROPE, "plain", **_plain("cos", "sin", "inv_freq"), position_ids=Field()),
    ),
    "numerical.rms_range": (
        _claims(
            Operator.RMS_NORM,
            "plain",
            x=Field(invisible=_of(*SMALL, by=same("numerical.rms_dot"))),
            weight=Field(invisible=_of(*SMALL, by=same("numerical.rms_dot"))),
            output=Field(invisible=_of("sign", by=same("numerical.rms_dot"))),
        ),
    ),
    "numerical.rms_dot": (_claims(Operator.RMS_NORM, "plain", **_plain("x", "weight", "output")),),
    "numerical.linear_checksum": (
        _claims(
            Operator.LINEAR,
            "plain",
            x=Field(_by_input),
            weight=Field(_by_weight),
            output=Field(),
        ),
        _claims(
            Operator.LINEAR,
            "trusted, no two errors cancel",
            x=Field(_by_input),
            output=Field(),
            block_sums=Field(_by_block),
            bias_sums=Field(),
            block_weights=Field(),
            weight=Field(invisible=_of(*CLASSES, by=as_tiles)),
            block_norms=Field(invisible=_of("vanishing", by=_NARROWS)),
        ),
    ),
    "numerical.swiglu": (
        _claims(
            Operator.SWIGLU,
            "plain",
            gate=Field(_by_output),
            up=Field(_by_output),
            output=Field(),
        ),
    ),
    "numerical.residual": (_claims(Operator.RESIDUAL, "plain", **_plain("x", "delta", "output")),),
    "numerical.attention_hull": (
        _claims(
            Operator.ATTENTION,
            "causal",
            output=Field(invisible=_of(*SMALL, by=same("numerical.attention_row_sum"))),
            v=Field(_by_value, invisible=_of(*CLASSES, by=same("numerical.attention_row_sum"))),
        ),
        _claims(
            Operator.ATTENTION,
            "decode, as written",
            output=Field(invisible=_of(*SMALL, by=same("numerical.attention_row_sum"))),
        ),
    ),
    "numerical.attention_row_sum": (
        _claims(
            Operator.ATTENTION,
            "causal chunk",
            q=Field(_by_query),
            k=Field(_by_key),
            v=Field(_by_value),
            output=Field(),
        ),
        _claims(
            Operator.ATTENTION,
            "decode, as written",
            value_sums=Field(_by_value_sum),
            output=Field(),
        ),
    ),
    "numerical.attention_scores": (
        _claims(
            Operator.ATTENTION,
            "decode, as written",
            k=Field(_seen_key),
            key_sums=Field(_live),
            key_reach=Field(invisible=_of("vanishing", by=_NARROWS)),
            q=Field(invisible=_of(*SMALL, by="both sides use it: rope and linear checks own q")),
        ),
    ),
    "numerical.attention_mask": (
        _claims(
            Operator.ATTENTION,
            "left padding, -inf",
            mask=Field(_nonzero("mask"), invisible=_of(*FINITE, by="still hides what it hid")),
        ),
        _claims(
            Operator.ATTENTION,
            "left padding",
            mask=Field(_by_mask, invisible=_of(*CLASSES, by=same("numerical.attention_row_sum"))),
        ),
    ),
    "numerical.logits_bound": (
        _claims(
            Operator.LOGITS,
            "trusted",
            logits=Field(invisible=_of(*SMALL, by=as_linear)),
            hidden=Field(_by_head, invisible=_of(*FINITE, by=as_linear)),
            weight_norm_max=Field(
                invisible={**_of("exponent-max", "Inf", by="a looser bound: the winner is held")}
            ),
        ),
    ),
    "numerical.logits_winner": (
        _claims(
            Operator.LOGITS,
            "trusted",
            logits=Field(_winner, invisible=_of(*SMALL, by=as_linear)),
            hidden=Field(_winner_hidden),
            weight=Field(_winner_row),
            weight_row_sums=Field(_winner_sum),
            weight_norm_max=Field(invisible=_of(*CLASSES, by=_NARROWS)),
        ),
    ),
    "numerical.all_reduce": (
        _claims(Operator.ALL_REDUCE, "plain", **_plain("partials", "output")),
    ),
    "memory.cu_seqlens": (
        _claims(Operator.FLASH_ATTN_VARLEN, "separate", **_plain("cu_seqlens_q", "cu_seqlens_k")),
    ),
    "state.kv_page_sum": (
        _claims(Operator.KV_READ, "mixed lengths", **_plain("sums", "sums_expected")),
        _claims(
            Operator.KV_UPDATE,
            "prefill",
            **_plain("new_key", "new_value"),
            key_cache=Field(lambda call: _used_slots(call, "key_cache")),
            value_cache=Field(lambda call: _used_slots(call, "value_cache")),
        ),
    ),
    "state.page_owner": (
        _claims(Operator.KV_READ, "mixed lengths", **_plain("owners", "owners_expected")),
    ),
    "state.page_epoch": (
        _claims(
            Operator.KV_READ,
            "mixed lengths",
            **_plain(
                "epochs",
                "epochs_expected",
                "first_positions",
                "first_positions_expected",
                "lengths",
                "lengths_expected",
            ),
        ),
    ),
    "state.prefix_tokens": (
        _claims(Operator.KV_READ, "a prefix was taken", **_plain("prefixes", "prefixes_expected")),
    ),
    "state.slot_mapping": (
        _claims(
            Operator.KV_UPDATE,
            "decode, mixed lengths, an idle row",
            slot_mapping=Field(lambda call: _real_tokens(call, "slot_mapping")),
            position_ids=Field(lambda call: _real_tokens(call, "position_ids")),
        ),
    ),
    "state.position_ledger": (
        _claims(Operator.BATCH, "decode", **_plain("position_ids", "position_ids_expected")),
        _claims(
            Operator.KV_UPDATE,
            "decode, mixed lengths, an idle row",
            position_ids=Field(lambda call: _real_tokens(call, "position_ids")),
            seq_lens=Field(),
        ),
    ),
    "state.weight_sum": (_claims(Operator.WEIGHT, "plain", **_plain("sums", "sums_expected")),),
    "semantic.token_range": (
        _claims(
            Operator.BATCH,
            "decode",
            input_ids=Field(invisible=_of("vanishing", by=same("semantic.token_ledger"))),
        ),
    ),
    "semantic.token_ledger": (
        _claims(Operator.BATCH, "decode", **_plain("input_ids", "input_ids_expected")),
    ),
    "semantic.tokenizer_output": (
        _claims(
            Operator.TOKENIZER_OUTPUT,
            "mixed lengths, left padding",
            attention_mask=Field(_inner_tokens),
            position_ids=Field(
                lambda call: call.position_ids.double() * call.attention_mask.double()
            ),
        ),
    ),
    "semantic.sampler": (
        _claims(
            Operator.SAMPLER,
            "one setting a row",
            probs=Field(),
            token_ids=Field(
                _ones("token_ids"), invisible=_of("vanishing", by="token 0 may be drawn as well")
            ),
            temperature=Field(
                invisible={
                    **_of("vanishing", by="0 asks for the likeliest token, which it may have been"),
                    **_of("exponent-max", by="a temperature like any other: the request's own say"),
                }
            ),
            top_p=Field(invisible=_of("exponent-max", by="1 has it set already: infinity, seen")),
            top_k=Field(),
        ),
        _claims(
            Operator.SAMPLER,
            "drawn",
            draws=Field(
                invisible=_of("vanishing", by="a draw of 0 may be what was drawn: near it")
            ),
        ),
    ),
    "semantic.logit_processor": (
        _claims(
            Operator.LOGIT_PROCESSOR,
            "allowed set",
            before=Field(lambda call: call.allowed.double()),
            after=Field(lambda call: call.allowed.double()),
            allowed=Field(),
        ),
    ),
}
"""Check id → where it is held to its claim. Checks of metadata alone have no tensor to read."""

METADATA: Mapping[str, str] = {
    "memory.tensor_contract": "reads forms, never a value",
    "state.kv_shape": "reads forms, never a value",
    "memory.watermark": "reads two numbers of the host",
    "semantic.structured_output": "reads a text",
}
"""Checks that no fault in a tensor can reach."""


def of(call: Call, claim: Claim, field: str) -> list[int]:
    """Flat indices of the elements of a field that matter, the most first; at least one."""
    spec = claim.fields[field]
    tensor = getattr(call, field)
    weight = tensor.double().abs() if spec.weight is None else spec.weight(call)
    flat = weight.reshape(-1)
    order = flat.argsort(descending=True)
    matters = order[flat[order] >= 0.6 * flat[order[0]]]
    return matters[: max(1, min(3, flat.numel() // 8))].tolist()
