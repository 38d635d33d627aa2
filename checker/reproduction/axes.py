"""The axes of every record's tensors, and what is left of a call when some indices are kept.

A layout is a word an axis: `K*G` is one axis of K groups of G, `P+P+U` one that is laid end to end,
`*` any number of leading axes. Letters: see tocsin/core/calls.py; here also C ranks, G query heads
a key head, F value features, P pairs of a rotation, U features that are not rotated, M sums.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor

from tocsin.core import calls
from tocsin.core.calls import Call

LAYOUTS: Final[Mapping[type[Call], Mapping[str, str]]] = {
    calls.TokenizerOutputCall: dict.fromkeys(("input_ids", "attention_mask", "position_ids"), "*"),
    calls.EmbeddingCall: {"input_ids": "*", "weight": "V D", "output": "* D"},
    calls.RopeCall: {
        "inv_freq": "P",
        "cos": "R S P+P",
        "sin": "R S P+P",
        "position_ids": "R S",
        "q": "R H S P+P+U",
        "k": "R K S P+P+U",
        "q_out": "R H S P+P+U",
        "k_out": "R K S P+P+U",
    },
    calls.RMSNormCall: {"x": "* D", "weight": "D", "output": "* D", "weight_trusted": "D"},
    calls.LinearCall: {
        "x": "* D",
        "weight": "N D",
        "bias": "N",
        "output": "* N",
        "block_sums": "G D",
        "block_norms": "G",
        "bias_sums": "G",
        "block_weights": "",  # a pattern of its own, whole whatever is kept
    },
    calls.SwiGLUCall: dict.fromkeys(("gate", "up", "output"), "* N"),
    calls.ResidualCall: dict.fromkeys(("x", "delta", "output"), "* D"),
    calls.AttentionCall: {
        "k": "R K L E",
        "v": "R K L F",
        "q": "R K*G S E",
        "mask": "R K*G S L",
        "output": "R K*G S F",
        "lse": "R K*G S",
        "key_sums": "R K E",
        "key_reach": "R K",
        "value_sums": "R K L",
        "value_norms": "R K L",
        "value_low": "R K F",
        "value_high": "R K F",
    },
    calls.VarlenAttentionCall: {
        "k": "L K E",
        "v": "L K F",
        "q": "T K*G E",
        "qkv": "T Q H E",
        "output": "T K*G F",
    },
    calls.KVUpdateCall: {
        "key_cache": "P B K E",
        "value_cache": "P B K E",
        "new_key": "T K E",
        "new_value": "T K E",
        "slot_mapping": "T",
        "block_table": "R n",
        "seq_lens": "R",
        "position_ids": "T",
        "owners": "P",
        "token_rows": "T",
    },
    calls.KVReadCall: {
        **dict.fromkeys(
            (
                "entry_rows",
                "pages",
                "owners",
                "owners_expected",
                "epochs",
                "epochs_expected",
                "first_positions",
                "first_positions_expected",
                "lengths",
                "lengths_expected",
            ),
            "N",
        ),
        "sums": "N M",
        "sums_expected": "N M",
        "prefixes": "N L",
        "prefixes_expected": "N L",
    },
    calls.BatchCall: {
        **dict.fromkeys(
            ("input_ids", "input_ids_expected", "position_ids", "position_ids_expected"), "*"
        ),
        "block_table": "R n",
    },
    calls.LogitsCall: {
        "logits": "* V",
        "hidden": "* D",
        "weight": "V D",
        "weight_norm_max": "",
        "weight_row_sums": "V",
    },
    calls.LogitProcessorCall: dict.fromkeys(("before", "after", "allowed"), "* V"),
    calls.SamplerCall: {
        "probs": "* V",
        **dict.fromkeys(("token_ids", "temperature", "top_p", "top_k", "draws"), "*"),
    },
    calls.AllReduceCall: {"partials": "C *", "output": "*"},
    calls.StructuredOutputCall: {},
    calls.WeightCall: {"sums": "N", "sums_expected": "N"},
    calls.DeviceMemoryCall: {},
}
"""Record → field → layout; fields that are no tensors, or have no axis, are not in it."""

TOKENS: Final[Mapping[type[Call], str]] = {
    calls.RopeCall: "R S",
    calls.AttentionCall: "R S",
    calls.VarlenAttentionCall: "T",
    calls.KVUpdateCall: "T",
    calls.KVReadCall: "N",
}
"""Axes along which a check has one ratio each; `*` where nothing else is said."""

_SCALAR: Final = frozenset({"temperature", "top_p", "top_k"})

Kept = Mapping[str, Tensor]
"""Axis → int64 indices that are kept, ascending."""


@dataclass(frozen=True, slots=True)
class Axes:
    """The axes of one call.

    Attributes:
        sizes: the size of each.
        uneven: axes on which the tensors of the call do not agree: its form is broken there.
        fields: fields that are tensors.
        tokens: axes along which the check has one ratio each.
    """

    sizes: Mapping[str, int]
    uneven: frozenset[str]
    fields: tuple[str, ...]
    tokens: tuple[str, ...]

    def token_place(self, token: int) -> dict[str, int]:
        """Index along each token axis of a token's flat number."""
        found: dict[str, int] = {}
        for name in reversed(self.tokens):
            token, found[name] = divmod(token, self.sizes[name])
        return found


def axes_of(call: Call) -> Axes:
    """Names and sizes of a call's axes."""
    found: dict[str, set[int]] = {}
    layouts = LAYOUTS[type(call)]
    fields = sorted(layouts, key=lambda name: "*" in layouts[name] or "+" in layouts[name])
    for name in fields:
        tensor = getattr(call, name)
        if not isinstance(tensor, Tensor):
            continue
        for word, size in zip(_words(name, call, tensor), tensor.shape, strict=True):
            _learn(found, word, size)
    sizes = {name: max(seen) for name, seen in found.items()}
    uneven = frozenset(name for name, seen in found.items() if len(seen - {1}) > 1)
    words = TOKENS.get(type(call), "").split() or sorted(a for a in sizes if a.startswith("l"))
    present = tuple(name for name in layouts if isinstance(getattr(call, name), Tensor))
    return Axes(sizes, uneven, present, tuple(name for name in words if name in sizes))


def select(call: Call, kept: Kept) -> dict[str, Tensor]:
    """The tensors of a call with only the kept indices; a broadcast axis stays as it is."""
    sizes = axes_of(call).sizes
    return {
        name: select_field(call, name, tensor, kept, sizes)
        for name in LAYOUTS[type(call)]
        if isinstance(tensor := getattr(call, name), Tensor)
    }


def select_field(
    call: Call, name: str, tensor: Tensor, kept: Kept, sizes: Mapping[str, int]
) -> Tensor:
    """One tensor that is laid out as the field is, with only the kept indices."""
    for axis, word in enumerate(_words(name, call, tensor)):
        wanted = _indices(word, kept, sizes)
        if wanted is None:
            continue
        size = tensor.shape[axis]
        if size == 1 and wanted[1] != 1:
            continue  # broadcast
        indices = wanted[0].to(tensor.device)
        tensor = _laid_out_as(tensor, tensor.index_select(axis, indices[indices < size]))
    return tensor


def _laid_out_as(before: Tensor, after: Tensor) -> Tensor:
    """The numbers of `after` in memory in the order of the axes of `before`: strides are a fact."""
    if before.is_contiguous():
        return after
    order = sorted(range(before.ndim), key=before.stride, reverse=True)
    back = sorted(range(before.ndim), key=lambda axis: order[axis])
    return after.permute(order).contiguous().permute(back)


def tokens_kept(axes: Axes, kept: Kept) -> Tensor:
    """Flat numbers, in the call before, of the tokens that are kept."""
    shape = [axes.sizes[name] for name in axes.tokens]
    numbers = torch.arange(math.prod(shape)).reshape(shape)
    for axis, name in enumerate(axes.tokens):
        if name in kept:
            numbers = numbers.index_select(axis, kept[name])
    return numbers.reshape(-1)


def place_of(call: Call, name: str, flat: int, axes: Axes) -> dict[str, int]:
    """Index along each simple axis of one element of a field."""
    tensor = getattr(call, name)
    found: dict[str, int] = {}
    for axis, word in reversed(list(enumerate(_words(name, call, tensor)))):
        flat, index = divmod(flat, tensor.shape[axis])
        if "*" in word:
            outer, inner = word.split("*")
            found[outer], found[inner] = divmod(index, axes.sizes.get(inner, 1))
        elif "+" in word:
            pairs = axes.sizes.get(word.split("+")[0], 0)
            if index < 2 * pairs:
                found[word.split("+")[0]] = index % pairs
            else:
                found["U"] = index - 2 * pairs
        elif word and tensor.shape[axis] > 1:
            found[word] = index
    return found


def with_tensors(call: Call, tensors: Mapping[str, Any]) -> Call:
    """The call with other values in some fields."""
    return replace(call, **tensors)


def elements(call: Call) -> int:
    """Number of tensor elements in a call."""
    values = (getattr(call, name) for name in type(call).__dataclass_fields__)
    return sum(value.numel() for value in values if isinstance(value, Tensor))


def _words(name: str, call: Call, tensor: Tensor) -> list[str]:
    """One word an axis of the tensor; leading axes are l0, l1, …"""
    words = LAYOUTS[type(call)][name].split()
    if isinstance(call, calls.AttentionCall) and name == "mask":
        return words[len(words) - tensor.ndim :] if tensor.ndim <= 4 else [""] * tensor.ndim
    if "*" in words:
        at = words.index("*")
        lead = tensor.ndim - len(words) + 1
        if lead < 0 or (name in _SCALAR and tensor.ndim == 0):
            return [""] * tensor.ndim
        words[at : at + 1] = [f"l{axis}" for axis in range(lead)]
    return words if len(words) == tensor.ndim else [""] * tensor.ndim


def _learn(found: dict[str, set[int]], word: str, size: int) -> None:
    """Note the size of a simple axis, or of the unknown part of a composed one."""
    if "*" in word:
        outer, inner = word.split("*")
        groups = max(found.get(outer, {1}))
        if groups and size % groups == 0 and size >= groups:
            found.setdefault(inner, set()).add(size // groups)
    elif "+" in word:
        parts = word.split("+")
        if len(parts) == 2:
            found.setdefault(parts[0], set()).add(size // 2)
        else:
            found.setdefault(parts[2], set()).add(size - 2 * max(found.get(parts[0], {0})))
    elif word:
        found.setdefault(word, set()).add(size)


def _indices(word: str, kept: Kept, sizes: Mapping[str, int]) -> tuple[Tensor, int] | None:
    """Kept indices of a possibly composed axis, and its whole size; None: all are kept."""
    names: Sequence[str] = word.replace("+", " ").replace("*", " ").split()
    if not any(name in kept for name in names):
        return None
    part = [kept.get(name, torch.arange(sizes.get(name, 1))) for name in names]
    whole = [sizes.get(name, 1) for name in names]
    if "*" in word:
        return (part[0][:, None] * whole[1] + part[1][None, :]).reshape(-1), whole[0] * whole[1]
    offsets = [sum(whole[:index]) for index in range(len(whole))]
    joined = torch.cat([one + offset for one, offset in zip(part, offsets, strict=True)])
    return joined, sum(whole)
