"""Why a call fails a check, in words that do not depend on its size: what shrinking must keep."""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor

from tocsin.checker.checks.semantic.structured_output import why_not
from tocsin.checker.masks import allowed_keys
from tocsin.checker.rows import rows_of_tokens
from tocsin.checker.structure import problem
from tocsin.core import calls
from tocsin.core.calls import Call

_NUMBERS = re.compile(r"-?\d+(?:\.\d+)?(?:, *)?")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")


def reasons_of(check_id: str, call: Call, ratio: float) -> frozenset[str]:
    """The rules that a call breaks, and whether the check still returned a number.

    Args:
        ratio: the worst ratio: NaN, infinite, or above its limit.
    """
    kind = "no number" if math.isnan(ratio) else "over"
    form = problem(call)
    if form:
        return frozenset((kind, _NUMBERS.sub("#", form)))
    rule = _RULES.get(check_id)
    return frozenset((kind, *(rule(call) if rule is not None else ())))


def kind_of(tensor: Tensor) -> str:
    """NaN, infinite or finite: the worst of a tensor's numbers."""
    if not tensor.is_floating_point() or bool(tensor.isfinite().all()):
        return "finite"
    return "NaN" if bool(tensor.isnan().any()) else "infinite"


def _named(**broken: Any) -> tuple[str, ...]:
    return tuple(name for name, bad in broken.items() if bool(torch.as_tensor(bad).any()))


def _attention_mask(call: calls.AttentionCall) -> tuple[str, ...]:
    allowed = allowed_keys(call)
    if allowed is None:
        return ()
    allowed = allowed.reshape((1,) * (4 - allowed.ndim) + tuple(allowed.shape))
    allowed = allowed.expand(-1, -1, call.q.shape[2], call.k.shape[2])
    blind = ~allowed.any(dim=-1)
    mask = call.mask
    added = mask is not None and mask.is_floating_point()
    written = (
        call.output is not None and not added and (blind[..., None] & (call.output != 0)).any()
    )
    return _named(
        blind=blind,
        written=written,
        falls=(allowed.sum(dim=-1).diff(dim=-1) < 0).all(dim=-1),
        unsound=added and mask is not None and ~(mask < torch.inf).all(),
        ones=added and mask is not None and ((mask == 1) | (mask == 0)).all(),
    )


def _slot_mapping(call: calls.KVUpdateCall) -> tuple[str, ...]:
    pages, size = call.key_cache.shape[:2]
    rows, blocks = call.block_table.shape
    slots, row = call.slot_mapping.to(torch.int64), rows_of_tokens(call)
    real = slots != -1
    inside = real & (slots >= 0) & (slots < pages * size)
    known = inside & (row >= 0) & (row < rows)
    block = (call.position_ids.to(torch.int64) // size).clamp(0, max(0, blocks - 1))
    page = call.block_table.to(torch.int64)[row.clamp(0, max(0, rows - 1)), block]
    expected = page * size + call.position_ids % size
    owner = row if call.owners is None else call.owners[(slots // size).clamp(0, pages - 1)]
    ordered = slots[real].sort().values
    found = _named(
        below=slots < -1,
        beyond=slots >= pages * size,
        no_row=inside & ~known,
        no_page=known & (page < 0),
        off_table=known & (page >= 0) & (slots != expected),
        twice=ordered.diff() == 0,
        foreign=known & (owner != row),
    )
    return found or ("padding",)


def _kv_page_sum(call: calls.KVReadCall | calls.KVUpdateCall) -> tuple[str, ...]:
    if isinstance(call, calls.KVReadCall):
        return ()
    slots = call.key_cache.shape[0] * call.key_cache.shape[1]
    return _named(beyond=call.slot_mapping >= slots)


def _page_epoch(call: calls.KVReadCall) -> tuple[str, ...]:
    return _named(
        epoch=call.epochs != call.epochs_expected,
        first=call.first_positions != call.first_positions_expected,
        length=call.lengths != call.lengths_expected,
    )


def _page_owner(call: calls.KVReadCall) -> tuple[str, ...]:
    shared = call.owners == -1
    return _named(
        foreign=(call.owners != call.owners_expected) & ~shared,
        freed=call.owners < -1,
        twice=call.pages.sort().values.diff() == 0,
    )


def _prefix_tokens(call: calls.KVReadCall) -> tuple[str, ...]:
    written, expected = call.prefixes, call.prefixes_expected
    if written is None or expected is None:
        return ()
    unknown = (written < 0).all(-1) & (expected >= 0).any(-1)
    return _named(unknown=unknown, other=written != expected)


def _tokenizer_output(call: calls.TokenizerOutputCall) -> tuple[str, ...]:
    shape = (-1, call.input_ids.shape[-1])
    real = torch.ones(call.input_ids.shape) if call.attention_mask is None else call.attention_mask
    real = real.reshape(shape)
    positions = call.position_ids
    expected = (real != 0).long().cumsum(dim=1) - 1
    return _named(
        value=(real != 0) & (real != 1),
        hole=(real != 0).long().diff(dim=1).ne(0).sum(dim=1) > 1,
        position=positions is not None
        and ((real != 0) & (positions.reshape(shape) != expected)).any(),
        long=call.max_length is not None and ((real != 0).sum(dim=1) > call.max_length).any(),
    )


def _sampler(call: calls.SamplerCall) -> tuple[str, ...]:
    size = call.probs.shape[-1]
    probs = call.probs.reshape(-1, size).to(torch.float64)
    total = probs.sum(dim=-1)
    broken: dict[str, Any] = {
        "negative": probs < 0,
        "sum_above": total > 1.001 + 2**-7,
        "sum_below": total < 0.999 - 2**-7,
        "NaN_sum": total.isnan(),
    }
    greedy = torch.zeros(len(probs), dtype=torch.bool)
    if call.temperature is not None:
        heat = torch.as_tensor(call.temperature, dtype=torch.float64).reshape(-1).cpu()
        greedy = (heat == 0).expand(len(probs))
        broken["temperature"] = ~((heat == 0) | ((heat >= 0.999e-5) & (heat < math.inf)))
    if call.token_ids is not None:
        ids = call.token_ids.reshape(-1)
        inside = (ids >= 0) & (ids < size)
        chosen = probs.gather(1, ids.long().clamp(0, size - 1)[:, None])[:, 0]
        broken |= {
            "outside": ~inside,
            "impossible": inside & ~(chosen > 0),
            "unlikely": inside & greedy.to(ids.device) & (chosen < probs.amax(dim=-1)),
        }
    if call.top_p is not None:
        share = torch.as_tensor(call.top_p, dtype=torch.float64)
        broken["top_p"] = ~((share > 0) & (share <= 1))
    if call.top_k is not None:
        count = torch.as_tensor(call.top_k, dtype=torch.float64)
        lowest = torch.where(probs > 0, probs, math.inf).amin(dim=-1, keepdim=True)
        above = (probs > lowest).sum(dim=-1)
        limited = (count != -1) & ~greedy
        broken["top_k"] = (count != -1) & ~((count >= 1) & (count <= size))
        broken["top_k_not_applied"] = limited & (count >= 1) & (above >= count)
    return _named(**broken)


def _logit_processor(call: calls.LogitProcessorCall) -> tuple[str, ...]:
    lowest = torch.finfo(call.after.dtype).min
    masked = call.after <= lowest
    changed = ~masked & (call.after != call.before.to(call.after.dtype))
    allowed = call.allowed
    already = call.before <= torch.finfo(call.before.dtype).min
    return _named(
        NaN=call.after.isnan(),
        infinite=call.after == math.inf,
        raised=changed & (call.after > call.before),
        lowered=changed & (call.after < call.before),
        nothing_left=~(~masked & (call.after < math.inf)).any(dim=-1),
        forbidden_kept=allowed is not None and (~masked & ~allowed & ~already).any(),
        allowed_masked=allowed is not None and (masked & allowed & ~already).any(),
    )


def _token_range(call: Any) -> tuple[str, ...]:
    size = call.weight.shape[0] if isinstance(call, calls.EmbeddingCall) else call.vocab_size
    return _named(below=call.input_ids < 0, beyond=call.input_ids >= size)


def _cu_seqlens(call: calls.VarlenAttentionCall) -> tuple[str, ...]:
    found: list[str] = []
    totals = {
        "q": call.total_q if call.q is None else call.q.shape[0],
        "k": call.total_k if call.k is None else call.k.shape[0],
    }
    if call.qkv is not None:
        totals = dict.fromkeys(totals, call.qkv.shape[0])
    if call.cu_seqlens_q.shape != call.cu_seqlens_k.shape:
        found.append("row counts differ")
    for side in ("q", "k"):
        cu, longest = getattr(call, f"cu_seqlens_{side}"), getattr(call, f"max_seqlen_{side}")
        total = totals[side]
        found.append(f"{side} {cu.dtype}" if cu.dtype is not torch.int32 else side)
        if cu.ndim != 1 or cu.numel() == 0:
            found.append(f"{side} has no lengths")
            continue
        lengths = cu.to(torch.int64).diff()
        found += [
            f"{side} {name}"
            for name, bad in (
                ("starts late", int(cu[0]) != 0),
                ("falls", bool((lengths < 0).any())),
                ("longest too small", bool((lengths > longest).any())),
                ("longest negative", longest < 0),
                ("ends short", total is not None and int(cu[-1]) < total),
                ("ends beyond", total is not None and int(cu[-1]) > total),
            )
            if bad
        ]
        expected = getattr(call, f"lengths_{side}_expected")
        if expected is not None and expected.shape != lengths.shape:
            found.append(f"{side} of other rows than the ledger's")
        elif expected is not None and not torch.equal(lengths, expected.to(torch.int64)):
            found.append(f"{side} differs from the ledger")
    return tuple(found)


def _kv_shape(call: Any) -> tuple[str, ...]:
    if isinstance(call, calls.KVUpdateCall):
        pairs = [(call.new_key, call.new_value), (call.key_cache, call.value_cache)]
    else:
        pairs = [(call.k, call.v)]
    return tuple(
        f"pair {index} axis {axis}"
        for index, (k, v) in enumerate(pairs)
        for axis, (one, other) in enumerate(zip(k.shape, v.shape, strict=False))
        if one != other
    )


def _structured_output(call: calls.StructuredOutputCall) -> tuple[str, ...]:
    words = _QUOTED.sub("…", why_not(call.text, call.json_schema))
    return (_NUMBERS.sub("#", re.sub(r"\(char.*", "", words)),)


def _finite(call: Call) -> tuple[str, ...]:
    names = (name for name in type(call).__dataclass_fields__)
    kinds = {
        name: kind_of(value) for name in names if isinstance(value := getattr(call, name), Tensor)
    }
    return tuple(f"{name} {kind}" for name, kind in kinds.items() if kind != "finite")


_RULES: Final[Mapping[str, Callable[[Any], tuple[str, ...]]]] = {
    "numerical.finite": _finite,
    "numerical.attention_mask": _attention_mask,
    "memory.cu_seqlens": _cu_seqlens,
    "state.kv_page_sum": _kv_page_sum,
    "state.kv_shape": _kv_shape,
    "state.page_epoch": _page_epoch,
    "state.page_owner": _page_owner,
    "state.prefix_tokens": _prefix_tokens,
    "state.slot_mapping": _slot_mapping,
    "semantic.logit_processor": _logit_processor,
    "semantic.sampler": _sampler,
    "semantic.structured_output": _structured_output,
    "semantic.token_range": _token_range,
    "semantic.tokenizer_output": _tokenizer_output,
}
"""Check id → which of its rules a call breaks; a check with a single rule, or with a reference to
compare with, needs none."""
