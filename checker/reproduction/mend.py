"""What must follow when indices are kept: page numbers, ids, blocks and totals that point at them.

Axes: see tocsin/core/calls.py and tocsin/checker/reproduction/axes.py.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor

from tocsin.checker.masks import allowed_keys
from tocsin.checker.reproduction.axes import Axes, Kept, select
from tocsin.checker.rows import rows_of_tokens
from tocsin.checker.structure import problem
from tocsin.core import calls
from tocsin.core.calls import Call

Mended = tuple[dict[str, Tensor], dict[str, Any]]
"""What is kept in the end, and the fields that a mere selection does not give."""


def mended(call: Call, kept: Kept, axes: Axes) -> Mended | None:
    """Complete a choice of indices; None where it makes no call."""
    if any(indices.numel() == 0 for indices in kept.values()):
        return None
    rule = _RULES.get(type(call))
    if rule is None or problem(call):  # where the form is broken, nothing points anywhere
        return dict(kept), {}
    return rule(call, dict(kept), axes)


def _embedding(call: calls.EmbeddingCall, kept: dict[str, Tensor], axes: Axes) -> Mended | None:
    """Only those rows of the table stay that an id leads to."""
    if not isinstance(call.weight, Tensor) or call.weight.ndim != 2:
        return kept, {}
    ids = select(call, {name: one for name, one in kept.items() if name != "V"})["input_ids"]
    if ids.is_floating_point():
        return kept, {}
    size = call.weight.shape[0]
    used = ids[(ids >= 0) & (ids < size)].unique()  # type: ignore[no-untyped-call]
    rows = used if used.numel() else torch.zeros(1, dtype=torch.int64)
    kept["V"] = rows.to("cpu", torch.int64)
    inside = (ids >= 0) & (ids < size)
    beyond = torch.where(ids >= size, ids - size + rows.numel(), ids)
    place = torch.searchsorted(rows, ids.clamp(0, size - 1))
    return kept, {"input_ids": torch.where(inside, place, beyond).to(ids.dtype)}


def _linear(call: calls.LinearCall, kept: dict[str, Tensor], axes: Axes) -> Mended | None:
    """Whole blocks of features, or features of one block: the sums of the others have no place."""
    if "N" not in kept or "G" not in axes.sizes:
        return kept, {}
    size = call.block_size
    block = kept["N"] // size
    chosen = block.unique()  # type: ignore[no-untyped-call]
    if chosen.numel() > 1:
        whole = torch.isin(torch.arange(axes.sizes["N"]) // size, chosen)
        if int(whole.sum()) != kept["N"].numel():
            return None
    kept["G"] = chosen
    return kept, {}


def _attention(call: calls.AttentionCall, kept: dict[str, Tensor], axes: Axes) -> Mended | None:
    """Sums as written lose what is left out as it is now: what is wrong in them stays."""
    given: dict[str, Any] = {}
    if call.key_sums is not None and "L" in kept:
        allowed = allowed_keys(call)
        seen = (
            torch.ones(1, 1, 1, axes.sizes["L"], dtype=torch.bool) if allowed is None else allowed
        )
        seen = seen.reshape((1,) * (4 - seen.ndim) + tuple(seen.shape)).any(dim=1).any(dim=1)
        left = ~torch.isin(torch.arange(axes.sizes["L"]), kept["L"])
        hidden = ~(seen & left)[:, None, :, None]  # [R|1,1,L,1]
        lost = call.k.to(torch.float64).masked_fill(hidden, 0.0).sum(dim=2)
        given["key_sums"] = select(replace(call, key_sums=call.key_sums - lost), kept)["key_sums"]
    if call.value_sums is not None and "F" in kept:
        left = ~torch.isin(torch.arange(axes.sizes["F"]), kept["F"])
        lost = call.v[..., left].sum(dim=-1, dtype=torch.float32)
        sums = replace(call, value_sums=call.value_sums - lost)
        given["value_sums"] = select(sums, kept)["value_sums"]
    return kept, given


def _tokenizer_output(
    call: calls.TokenizerOutputCall, kept: dict[str, Tensor], axes: Axes
) -> Mended | None:
    """A text that is too long by n tokens stays too long by n."""
    if call.max_length is None:
        return kept, {}
    ids, mask = call.input_ids, call.attention_mask
    before = torch.ones_like(ids) if mask is None else mask
    after = select(call, kept).get(
        "attention_mask", torch.ones_like(select(call, kept)["input_ids"])
    )
    fewer = int((before != 0).sum(dim=-1).max()) - int((after != 0).sum(dim=-1).max())
    return kept, {"max_length": max(0, call.max_length - fewer)}


def _sampler(call: calls.SamplerCall, kept: dict[str, Tensor], axes: Axes) -> Mended | None:
    """The mass of tokens that are left out goes to the likeliest one that stays."""
    if "V" not in kept:
        return kept, {}
    size, left = axes.sizes["V"], kept["V"]
    rows = {name: one for name, one in kept.items() if name != "V"}
    tensors = select(call, rows)
    probs = tensors["probs"]
    flat = probs.reshape(-1, size)
    smaller = flat[:, left].clone()
    gone = torch.ones(size, dtype=torch.bool)
    gone[left] = False
    lost = flat[:, gone]
    lost = torch.where(lost > 0, lost, 0.0).to(torch.float64).sum(dim=-1)
    top = smaller.nan_to_num(0.0).argmax(dim=-1)
    lines = torch.arange(len(smaller))
    smaller[lines, top] = (smaller[lines, top].to(torch.float64) + lost).to(smaller.dtype)
    extra: dict[str, Any] = {"probs": smaller.reshape(*probs.shape[:-1], left.numel())}
    if call.draws is not None:  # in another distribution they fall elsewhere
        extra["draws"] = None
    ids = tensors.get("token_ids")
    if ids is not None:
        inside = (ids >= 0) & (ids < size)
        if not bool(torch.isin(ids[inside], left).all()):
            return None
        beyond = torch.where(ids >= size, ids - size + left.numel(), ids)
        place = torch.searchsorted(left, ids.clamp(0, size - 1))
        extra["token_ids"] = torch.where(inside, place, beyond).to(ids.dtype)
    return kept, extra


def _kv_update(call: calls.KVUpdateCall, kept: dict[str, Tensor], axes: Axes) -> Mended | None:
    """Tokens decide: their rows, the pages of these rows, the blocks that their positions reach."""
    tokens, rows = call.slot_mapping.shape[0], call.block_table.shape[0]
    pages, size = call.key_cache.shape[:2]
    chosen = kept.get("T", torch.arange(tokens))
    row_of = rows_of_tokens(call)
    row = row_of[chosen]
    known = row[(row >= 0) & (row < rows)].unique()  # type: ignore[no-untyped-call]
    keep_rows = known if known.numel() else torch.zeros(1, dtype=torch.int64)
    slots, positions = call.slot_mapping[chosen], call.position_ids[chosen]
    # Leading blocks of all rows may go: every position moves down by as much.
    seen = positions[(slots != -1)]
    first = int(seen.min()) // size if seen.numel() and int(seen.min()) >= 0 else 0
    first = min(first, call.block_table.shape[1] - 1)
    last = int(positions.max()) // size if positions.numel() else 0
    last = max(first, min(last, call.block_table.shape[1] - 1))
    keep_blocks = torch.arange(first, last + 1)
    table = call.block_table[keep_rows][:, keep_blocks]
    inside = (slots >= 0) & (slots < pages * size)
    used = torch.cat((table.flatten(), slots[inside].to(table.dtype) // size))
    keep_pages = used[(used >= 0) & (used < pages)].unique()  # type: ignore[no-untyped-call]
    keep_pages = keep_pages.to(torch.int64)
    if keep_pages.numel() == 0:
        keep_pages = torch.zeros(1, dtype=torch.int64)
    kept = {**kept, "T": chosen, "R": keep_rows, "P": keep_pages, "n": keep_blocks}
    # Real tokens of a row behind the last one that is kept leave its length.
    after = []
    real = call.slot_mapping != -1
    for one in keep_rows.tolist():
        of_row = (row_of == one) & real
        mine = chosen[(row == one) & (slots != -1)]
        end = int(mine.max()) if mine.numel() else tokens
        after.append(int(of_row[end + 1 :].sum()))
    lengths = call.seq_lens[keep_rows] - torch.tensor(after).to(call.seq_lens.dtype)
    extra: dict[str, Any] = {
        "slot_mapping": _moved(slots, inside, keep_pages, size, pages),
        "block_table": torch.where(
            (table >= 0) & (table < pages),
            torch.searchsorted(keep_pages, table.clamp(0, pages - 1).to(torch.int64)).to(
                table.dtype
            ),
            torch.where(table >= pages, table - pages + keep_pages.numel(), table),
        ),
        "position_ids": positions - first * size,
        "seq_lens": lengths - first * size,
        "token_rows": torch.where(
            (row >= 0) & (row < rows),
            torch.searchsorted(keep_rows, row.clamp(0, rows - 1)),
            torch.where(row >= rows, row - rows + keep_rows.numel(), row),
        ),
    }
    if call.owners is not None:
        owners = call.owners[keep_pages]
        place = torch.searchsorted(keep_rows, owners.clamp(0, rows - 1).to(torch.int64))
        stays = torch.isin(owners.to(torch.int64), keep_rows)
        # A page of a row that is left out is still another's: it gets a number beyond the rows.
        other = torch.where(owners >= 0, keep_rows.numel(), owners)
        extra["owners"] = torch.where(stays, place.to(owners.dtype), other)
    return kept, extra


def _moved(slots: Tensor, inside: Tensor, pages: Tensor, size: int, count: int) -> Tensor:
    """Slots of pages under their new numbers; those beyond the pool stay as far beyond."""
    page = (slots // size).clamp(0, count - 1).to(torch.int64)
    new = torch.searchsorted(pages, page) * size + slots % size
    beyond = torch.where(slots >= count * size, slots - (count - pages.numel()) * size, slots)
    return torch.where(inside, new, beyond.to(torch.int64)).to(slots.dtype)


_RULES: Final[Mapping[type[Call], Callable[[Any, dict[str, Tensor], Axes], Mended | None]]] = {
    calls.EmbeddingCall: _embedding,
    calls.LinearCall: _linear,
    calls.AttentionCall: _attention,
    calls.TokenizerOutputCall: _tokenizer_output,
    calls.SamplerCall: _sampler,
    calls.KVUpdateCall: _kv_update,
}
