"""How the checks see a call of one of flash-attn's functions: before it, and one row after it.

Axes: see flash_sdpa.py.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from tocsin.checker.attach.flash_sdpa import UNLIMITED, CacheLayout, Form, from_pages, rotate
from tocsin.checker.varlen import VarlenMetadata
from tocsin.core.calls import AttentionCall, Call, KVUpdateCall, VarlenAttentionCall
from tocsin.core.errors import ContractError

Arguments = Mapping[str, Any]
"""All arguments of a call by name, defaults included."""


@dataclass(frozen=True, slots=True)
class View:
    """One call as the checks see it.

    Attributes:
        inputs: records that are checked before the launch.
        metadata: what must not change between check and launch; None where there is none.
        rows: number of sequences.
        whole: the record that takes the output; its `output` is set after the launch.
        shaped: the output in the axes of that record.
        row: one sequence as an attention call, from the output and the lse (or None); None where
            the sequence is empty.
    """

    inputs: tuple[Call, ...]
    metadata: VarlenMetadata | None
    rows: int
    whole: VarlenAttentionCall | AttentionCall
    shaped: Callable[[Tensor], Tensor]
    row: Callable[[int, Tensor, Tensor | None], AttentionCall | None]


def form_of(arguments: Arguments) -> Form:
    """How scores become weights in this call."""
    return Form(
        arguments["softmax_scale"],
        arguments["causal"],
        arguments["window_size"],
        arguments["softcap"],
        arguments["alibi_slopes"],
    )


def _dense(q: Tensor, k: Tensor, v: Tensor, arguments: Arguments) -> View:
    form = form_of(arguments)

    def row(index: int, output: Tensor, lse: Tensor | None) -> AttentionCall | None:
        one_lse = None if lse is None else lse[index]
        return _one_row(q[index], k[index], v[index], output[index], one_lse, form, index)

    q_BHSE, k_BKLE, v_BKLE = (one.transpose(1, 2) for one in (q, k, v))
    whole = AttentionCall(q=q_BHSE, k=k_BKLE, v=v_BKLE)
    return View((whole,), None, q.shape[0], whole, lambda output: output.transpose(1, 2), row)


def _plain(arguments: Arguments) -> View:
    return _dense(arguments["q"], arguments["k"], arguments["v"], arguments)


def _plain_kv(arguments: Arguments) -> View:
    k, v = arguments["kv"].unbind(2)
    return _dense(arguments["q"], k, v, arguments)


def _plain_qkv(arguments: Arguments) -> View:
    q, k, v = arguments["qkv"].unbind(2)
    return _dense(q, k, v, arguments)


def _packed(
    call: VarlenAttentionCall, q: Tensor, k: Tensor, v: Tensor, arguments: Arguments
) -> View:
    form, table = form_of(arguments), arguments.get("block_table")

    def row(index: int, output: Tensor, lse: Tensor | None) -> AttentionCall | None:
        # A read of the device after the launch, for the one row whose turn it is.
        start, stop = call.cu_seqlens_q[index : index + 2].tolist()
        first, last = call.cu_seqlens_k[index : index + 2].tolist()
        if table is None:
            keys, values = k[first:last], v[first:last]
        else:
            keys, values = (from_pages(one, table[index], last - first) for one in (k, v))
        one_lse = None if lse is None else lse[:, start:stop]
        return _one_row(q[start:stop], keys, values, output[start:stop], one_lse, form, index)

    metadata = VarlenMetadata(
        call.cu_seqlens_q,
        call.cu_seqlens_k,
        call.max_seqlen_q,
        call.max_seqlen_k,
        () if table is None else (table,),
    )
    inputs: tuple[Call, ...] = (call,)
    if table is not None and isinstance(call.cu_seqlens_k, Tensor) and call.cu_seqlens_k.numel():
        # A read of the device a paged launch: which pages it reads is looked up before it is made.
        lengths = tuple(call.cu_seqlens_k.diff().tolist())
        inputs += (_reads(k, v, CacheLayout(lengths, table.to(torch.int64), k.shape[1])),)
    rows = max(0, call.cu_seqlens_q.numel() - 1) if isinstance(call.cu_seqlens_q, Tensor) else 0
    return View(inputs, metadata, rows, call, lambda output: output, row)


def _varlen(arguments: Arguments) -> View:
    q, k, v = arguments["q"], arguments["k"], arguments["v"]
    paged = arguments["block_table"] is not None
    call = VarlenAttentionCall(
        q=None if paged else q,
        k=None if paged else k,
        v=None if paged else v,
        total_q=q.shape[0] if paged else None,
        cu_seqlens_q=arguments["cu_seqlens_q"],
        cu_seqlens_k=arguments["cu_seqlens_k"],
        max_seqlen_q=arguments["max_seqlen_q"],
        max_seqlen_k=arguments["max_seqlen_k"],
    )
    return _packed(call, q, k, v, arguments)


def _varlen_kv(arguments: Arguments) -> View:
    k, v = arguments["kv"].unbind(1)
    return _varlen({**arguments, "k": k, "v": v, "block_table": None})


def _varlen_qkv(arguments: Arguments) -> View:
    qkv, offsets, longest = arguments["qkv"], arguments["cu_seqlens"], arguments["max_seqlen"]
    call = VarlenAttentionCall(
        qkv=qkv,
        cu_seqlens_q=offsets,
        cu_seqlens_k=offsets,
        max_seqlen_q=longest,
        max_seqlen_k=longest,
    )
    q, k, v = qkv.unbind(1)
    return _packed(call, q, k, v, arguments)


def _kvcache(arguments: Arguments) -> View:
    q, k_cache, v_cache = arguments["q"], arguments["k_cache"], arguments["v_cache"]
    new, lengths = arguments["k"], arguments["cache_seqlens"]
    index, table = arguments["cache_batch_idx"], arguments["block_table"]
    layout = CacheLayout.of(k_cache, q.shape[0], lengths, index, table)
    added = 0 if new is None else new.shape[1]
    after = CacheLayout(
        tuple(length + added for length in layout.lengths), layout.table, layout.page_size
    )
    _demand_turns(arguments, max(after.lengths, default=0))
    inputs: tuple[Call, ...] = (_reads(k_cache, v_cache, after),)
    if new is not None:
        inputs += (_writes(k_cache, v_cache, new, arguments["v"], layout),)
    form = form_of(arguments)

    def row(at: int, output: Tensor, lse: Tensor | None) -> AttentionCall | None:
        length = layout.lengths[at]
        fixed = not form.causal and form.window == UNLIMITED
        steps = torch.arange(q.shape[1])
        spots = torch.full_like(steps, length) if fixed else length + steps
        turned = rotate(
            q[at],
            arguments["rotary_cos"],
            arguments["rotary_sin"],
            spots,
            arguments["rotary_interleaved"],
        )
        pad = arguments["cache_leftpad"]
        first = 0 if pad is None else int(pad[at])
        place = layout.place(at, torch.arange(first, length + added))
        one_lse = None if lse is None else lse[at]
        keys, values = k_cache[place], v_cache[place]
        return _one_row(turned, keys, values, output[at], one_lse, form, at)

    others = [lengths, index, table, arguments["cache_leftpad"]]
    where = tuple(one for one in others if isinstance(one, Tensor))
    empty = torch.empty(0, dtype=torch.int32)
    metadata = VarlenMetadata(empty, empty, q.shape[1], max(after.lengths, default=0), where)
    # The keys of a cache are another call's: only the form of the queries is told to the record.
    sample = k_cache[:1].transpose(1, 2).expand(q.shape[0], -1, -1, -1)
    whole = AttentionCall(q=q.transpose(1, 2), k=sample, v=sample)
    return View(inputs, metadata, q.shape[0], whole, lambda output: output.transpose(1, 2), row)


def _demand_turns(arguments: Arguments, length: int) -> None:
    """The rotary table must reach as far as the cache."""
    table = arguments["rotary_cos"]
    if table is not None and length > table.shape[0]:
        raise ContractError(
            f"flash-attn: rotary_cos ends at position {table.shape[0] - 1}, the cache reaches "
            f"{length - 1}; build a longer table or send a shorter input"
        )


def _reads(k_cache: Tensor, v_cache: Tensor, layout: CacheLayout) -> KVUpdateCall:
    """What a launch reads, as an update of the first slot of each block and of the last one.

    A page that several rows share is looked at once: to read it together is legal.
    """
    size, (rows, blocks) = layout.page_size, layout.table.shape
    lengths = torch.tensor(layout.lengths, dtype=torch.int64)
    starts = torch.arange(0, blocks * size, size).expand(rows, -1)
    used = starts < lengths[:, None]
    row = torch.arange(rows)[:, None].expand(-1, blocks)[used]
    positions = starts[used]
    # The last position shows a row that is longer than its table.
    ends = lengths > 0
    row = torch.cat((row, torch.arange(rows)[ends]))
    positions = torch.cat((positions, lengths[ends] - 1))
    table = layout.table.cpu()  # as the lengths: read once a launch, before it
    block = (positions // size).clamp(max=blocks - 1)
    slots = table[row, block] * size + positions % size
    # Beyond its table a row has no slot: one behind the last page, of its own.
    slots = torch.where(positions < blocks * size, slots, k_cache.shape[0] * size + row)
    first = _firsts(slots)
    row, positions, slots = row[first], positions[first], slots[first]
    kept = k_cache.new_zeros(1, *k_cache.shape[2:]).expand(len(slots), -1, -1)
    device = k_cache.device
    return KVUpdateCall(
        key_cache=k_cache,
        value_cache=v_cache,
        new_key=kept,
        new_value=kept,
        slot_mapping=slots.to(device),
        block_table=layout.table,
        seq_lens=lengths.to(device),
        position_ids=positions.to(device),
        token_rows=row.to(device),
    )


def _firsts(slots: Tensor) -> Tensor:
    """Index of the first of each group of equal slots."""
    seen: dict[int, int] = {}
    for at, slot in enumerate(slots.tolist()):  # of the host already, see the table above
        seen.setdefault(slot, at)
    return torch.tensor(list(seen.values()), dtype=torch.int64)


def _writes(
    k_cache: Tensor, v_cache: Tensor, k_new: Tensor, v_new: Tensor, layout: CacheLayout
) -> KVUpdateCall:
    """What a launch appends: two rows may not write to one place."""
    rows, added = k_new.shape[:2]
    size, blocks = layout.page_size, layout.table.shape[1]
    starts = torch.tensor(layout.lengths, dtype=torch.int64)
    positions = (starts[:, None] + torch.arange(added)).reshape(-1)
    row = torch.arange(rows).repeat_interleave(added)
    block = (positions // size).clamp(0, blocks - 1)
    slots = layout.table.cpu()[row, block] * size + positions % size  # likewise before the launch
    device = k_cache.device
    return KVUpdateCall(
        key_cache=k_cache,
        value_cache=v_cache,
        new_key=k_new.flatten(0, 1),
        new_value=v_new.flatten(0, 1),
        slot_mapping=slots.to(device),
        block_table=layout.table,
        seq_lens=(starts + added).to(device),
        position_ids=positions.to(device),
        token_rows=row.to(device),
    )


def _one_row(
    q_SHE: Tensor,
    k_LKE: Tensor,
    v_LKE: Tensor,
    output_SHE: Tensor,
    lse_HS: Tensor | None,
    form: Form,
    row: int,
) -> AttentionCall | None:
    """One sequence; queries without any key are left out: their zeros are by definition."""
    queries, keys = q_SHE.shape[0], k_LKE.shape[0]
    if queries == 0 or keys == 0:
        return None
    allowed = form.allowed(queries, keys, q_SHE.device)
    live = torch.arange(queries) if allowed is None else allowed.any(dim=1).nonzero().flatten()
    if live.numel() == 0:
        return None
    mask = form.bias(queries, keys, row, q_SHE.device)
    if mask is not None and allowed is not None:
        mask = mask.masked_fill(~allowed, -torch.inf)
    if mask is None and allowed is not None:
        mask = allowed[None]
    return AttentionCall(
        q=q_SHE[live].transpose(0, 1)[None],
        k=k_LKE.transpose(0, 1)[None],
        v=v_LKE.transpose(0, 1)[None],
        mask=None if mask is None else mask[None, :, live],
        scale=form.scale,
        softcap=form.softcap if form.softcap > 0 else None,
        output=output_SHE[live].transpose(0, 1)[None],
        lse=None if lse_HS is None else lse_HS[None, :, live],
        rows=1,
    )


VIEWS: Final[Mapping[str, Callable[[Arguments], View]]] = {
    "flash_attn_func": _plain,
    "flash_attn_kvpacked_func": _plain_kv,
    "flash_attn_qkvpacked_func": _plain_qkv,
    "flash_attn_varlen_func": _varlen,
    "flash_attn_varlen_kvpacked_func": _varlen_kv,
    "flash_attn_varlen_qkvpacked_func": _varlen_qkv,
    "flash_attn_with_kvcache": _kvcache,
}
"""Every guarded function and how it is seen."""
