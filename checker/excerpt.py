"""What of a call is stored: without prompts, and without memory that its checks do not read.

A check that alarmed on the call alarms on the excerpt: ids keep their order, their equality, and
whether they are in range; pages and rows keep their places relative to each other.

Axes: see tocsin/core/calls.py.
"""

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from tocsin.checker.snapshot import tensor_fields, with_tensors
from tocsin.core.calls import (
    BatchCall,
    Call,
    EmbeddingCall,
    KVUpdateCall,
    LinearCall,
    LogitsCall,
    StructuredOutputCall,
    TokenizerOutputCall,
)

LARGE_BYTES = 16 << 20
"""A weight or a cache above this is not stored whole where its checks do not need it whole."""

SAMPLE_BYTES = 256 << 10
"""The same bound for calls that are stored as one in a hundred: a storm must not fill the disk."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A call with a memory of its own, on the CPU.

    Attributes:
        call: None where it is too large; `note` says so.
        redacted: fields whose ids or texts were replaced.
        reduced: fields of which only a part is stored.
    """

    call: Call | None
    size_bytes: int
    redacted: tuple[str, ...] = ()
    reduced: tuple[str, ...] = ()
    note: str = ""


def excerpt(
    call: Call, bytes_max: int, *, prompts: bool, large_bytes: int | None = None
) -> Excerpt:
    """Copy a call; later writes into its tensors do not reach the copy.

    Args:
        bytes_max: more is not copied.
        prompts: whether token ids and texts may be stored as they are.
        large_bytes: weights and caches above it are stored in part; None: `LARGE_BYTES`.
    """
    redacted: list[str] = []
    reduced: list[str] = []
    if isinstance(call, EmbeddingCall):
        call = _used_rows(call)
        reduced.append("weight")
        redacted += [] if prompts else ["input_ids"]
    elif not prompts:
        call = _without_prompts(call, redacted)
    large = LARGE_BYTES if large_bytes is None else large_bytes
    call = _without_what_is_not_read(call, reduced, large)
    size_bytes = sum(map(stored_bytes, tensor_fields(call).values()))
    if size_bytes > bytes_max:
        note = f"the call holds {size_bytes} bytes, more than the {bytes_max} that may be stored"
        return Excerpt(None, size_bytes, note=note)
    copies = {name: _copy(tensor) for name, tensor in tensor_fields(call).items()}
    return Excerpt(with_tensors(call, copies), size_bytes, tuple(redacted), tuple(reduced))


def stored_bytes(tensor: Tensor) -> int:
    """Bytes of a tensor's own elements; an axis of stride 0 counts once."""
    if tensor.layout is not torch.strided:
        return 0
    elements = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        elements *= 1 if stride == 0 and size > 1 else size
    return elements * tensor.element_size()


def _copy(tensor: Tensor) -> Tensor:
    """The same form in another memory, on the CPU."""
    if tensor.layout is not torch.strided or tensor.is_meta:
        return tensor
    once = tensor.detach()
    for axis, stride in enumerate(tensor.stride()):
        if stride == 0 and tensor.shape[axis] > 1:
            once = once.narrow(axis, 0, 1)
    # Not `to` alone: a tensor that is on the CPU would come back as itself.
    copied = once.to("cpu", copy=True) if once.device.type != "cpu" else once.clone()
    return copied.expand(tensor.shape)


def _without_prompts(call: Call, redacted: list[str]) -> Call:
    """The call with other ids and no text."""
    if isinstance(call, StructuredOutputCall):
        redacted.append("text")
        return dataclasses.replace(call, text="")
    if isinstance(call, TokenizerOutputCall):
        redacted.append("input_ids")
        (ids,) = _renumbered(call.vocab_size, call.input_ids)
        return dataclasses.replace(call, input_ids=ids)
    if isinstance(call, BatchCall):
        redacted += ["input_ids", "input_ids_expected"]
        ids, expected = _renumbered(call.vocab_size, call.input_ids, call.input_ids_expected)
        return dataclasses.replace(call, input_ids=ids, input_ids_expected=expected)
    return call


def _renumbered(size: int, *ids: Tensor) -> tuple[Tensor, ...]:
    """Ids in range become the ranks of their values; those out of range, the fault, stay."""
    flat = torch.cat([one.detach().reshape(-1).to("cpu", torch.int64) for one in ids])
    inside = (flat >= 0) & (flat < size)
    _, ranks = torch.unique(flat[inside], return_inverse=True)
    flat[inside] = ranks
    parts = torch.split(flat, [one.numel() for one in ids])
    return tuple(
        part.reshape(one.shape).to(one.dtype) for part, one in zip(parts, ids, strict=True)
    )


def _used_rows(call: EmbeddingCall) -> Call:
    """The lookup in a table of those rows alone that were looked up."""
    weight_VD, ids = call.weight, call.input_ids
    if not _is_integer(ids) or weight_VD.ndim != 2 or weight_VD.layout is not torch.strided:
        return call
    size = weight_VD.shape[0]
    flat = ids.detach().reshape(-1).to(torch.int64)
    inside = (flat >= 0) & (flat < size)
    used, ranks = torch.unique(flat[inside], return_inverse=True)
    ranked = flat.clone()  # an id beyond the table is beyond any part of it, and stays
    ranked[inside] = ranks
    if used.numel() == 0:
        used = torch.zeros(1, dtype=torch.int64, device=flat.device)
    rows_UD = weight_VD.detach().index_select(0, used.to(weight_VD.device))
    return dataclasses.replace(
        call, input_ids=ranked.reshape(ids.shape).to(ids.dtype), weight=rows_UD
    )


def _without_what_is_not_read(call: Call, reduced: list[str], large_bytes: int) -> Call:
    """Large memory that the checks do not read by value, or of which they read little."""
    if isinstance(call, LogitsCall):
        if call.weight is None or stored_bytes(call.weight) <= large_bytes:
            return call
        return _outer_columns(call, reduced)
    if isinstance(call, LinearCall):
        weight, known = call.weight, call.block_sums is not None
    elif isinstance(call, KVUpdateCall) and stored_bytes(call.key_cache) > large_bytes:
        reduced += ["key_cache", "value_cache"]
        return _used_pages(call)
    else:
        return call
    if weight is None or not known or stored_bytes(weight) <= large_bytes or weight.ndim != 2:
        return call
    reduced.append("weight")
    return dataclasses.replace(call, weight=weight[:1].expand_as(weight))


def _outer_columns(call: LogitsCall, reduced: list[str]) -> Call:
    """The logits that some token has for its largest or smallest, and their rows of the weight."""
    weight, logits = call.weight, call.logits
    fits = weight is not None and weight.ndim == 2 and logits.ndim and logits.numel()
    if weight is None or not fits or weight.shape[0] != logits.shape[-1]:
        return call
    rows = logits.detach().reshape(-1, logits.shape[-1])
    # NaN is both, so that it stays.
    used = torch.unique(torch.cat((rows.argmax(dim=-1), rows.argmin(dim=-1))))
    reduced += ["logits", "weight"]
    sums, norm_max = call.weight_row_sums, call.weight_norm_max
    if norm_max is None:
        norm_max = torch.linalg.vector_norm(weight.detach(), dim=-1, dtype=torch.float32).amax()
    return dataclasses.replace(
        call,
        logits=logits.detach().index_select(-1, used.to(logits.device)),
        weight=weight.detach().index_select(0, used.to(weight.device)),
        weight_norm_max=norm_max,
        weight_row_sums=None if sums is None else sums.index_select(0, used.to(sums.device)),
    )


def _used_pages(call: KVUpdateCall) -> Call:
    """The update of a cache that holds those pages alone which the call names."""
    count, page_size = call.key_cache.shape[0], call.key_cache.shape[1]
    slots_T = call.slot_mapping.detach().to("cpu", torch.int64)
    table_Rn = call.block_table.detach().to("cpu", torch.int64)
    named = torch.cat((torch.div(slots_T, page_size, rounding_mode="floor"), table_Rn.reshape(-1)))
    used = torch.unique(named[(named >= 0) & (named < count)])
    if used.numel() == 0:
        used = torch.zeros(1, dtype=torch.int64)
    place_P = torch.zeros(count, dtype=torch.int64)
    place_P[used] = torch.arange(used.numel())

    def moved(pages: Tensor) -> Tensor:
        """Pages in range by their new places; others stay as far out of range as they were."""
        found = place_P[pages.clamp(0, count - 1)]
        beyond = torch.where(pages >= count, pages - count + used.numel(), pages)
        return torch.where((pages >= 0) & (pages < count), found, beyond)

    pages_T = torch.div(slots_T, page_size, rounding_mode="floor")
    new_slots_T = moved(pages_T) * page_size + slots_T.remainder(page_size)
    taken = used.to(call.key_cache.device)
    owners_P = call.owners
    return dataclasses.replace(
        call,
        key_cache=call.key_cache.detach().index_select(0, taken),
        value_cache=call.value_cache.detach().index_select(0, taken),
        slot_mapping=torch.where(slots_T < 0, slots_T, new_slots_T).to(call.slot_mapping.dtype),
        block_table=moved(table_Rn).to(call.block_table.dtype),
        owners=None if owners_P is None else owners_P.detach().cpu()[used],
    )


def _is_integer(tensor: Tensor) -> bool:
    return not (tensor.dtype.is_floating_point or tensor.dtype.is_complex)
