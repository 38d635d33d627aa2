"""Smaller candidates of what is not laid out along axes: packed sequences, and texts."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tocsin.checker.reproduction.subject import Subject
from tocsin.core.calls import Call, StructuredOutputCall, VarlenAttentionCall

Step = Callable[[Subject], Subject | None]


def shorter(call: Call) -> Iterator[Step]:
    """Steps to try one after the other; each is given the best subject so far."""
    if isinstance(call, VarlenAttentionCall):
        yield from _varlen_steps(call)
    elif isinstance(call, StructuredOutputCall):
        yield from _text_steps(call)


def _varlen_steps(call: VarlenAttentionCall) -> Iterator[Step]:
    yield _metadata_alone
    if call.cu_seqlens_q.ndim != 1 or call.cu_seqlens_k.ndim != 1:
        return
    for row in reversed(range(max(call.cu_seqlens_q.numel(), call.cu_seqlens_k.numel()) - 1)):
        yield lambda subject, row=row: _edited(subject, lambda n: [*n[:row], *n[row + 1 :]])  # type: ignore[misc]
    for longest in (1, 2, 4, 8, 16, 64, 256):
        yield lambda subject, longest=longest: _edited(  # type: ignore[misc]
            subject, lambda n: [min(one, longest) for one in n]
        )


def _metadata_alone(subject: Subject) -> Subject | None:
    """The lengths with the totals that they should add up to, without a tensor."""
    call: Any = subject.call
    packed = call.qkv
    total_q = packed.shape[0] if packed is not None else call.total_q
    total_k = packed.shape[0] if packed is not None else call.total_k
    if call.q is not None and call.k is not None:
        total_q, total_k = call.q.shape[0], call.k.shape[0]
    bare = replace(
        call, q=None, k=None, v=None, qkv=None, output=None, total_q=total_q, total_k=total_k
    )
    return replace(subject, call=bare)


def _edited(subject: Subject, edit: Callable[[list[int]], list[int]]) -> Subject | None:
    """Other lengths under the same mistakes: totals, longest and ledger as far off as before."""
    call: Any = subject.call
    if call.q is not None or call.qkv is not None:
        return None
    changed: dict[str, Any] = {}
    for side in ("q", "k"):
        cu: Tensor = getattr(call, f"cu_seqlens_{side}")
        if cu.ndim != 1 or cu.numel() == 0:
            continue
        lengths = cu.to(torch.int64).diff().tolist()
        new = edit(lengths)
        ends = torch.tensor([int(cu[0]), *new], dtype=torch.int64).cumsum(0)
        total, longest = getattr(call, f"total_{side}"), getattr(call, f"max_seqlen_{side}")
        changed[f"cu_seqlens_{side}"] = ends.to(cu.dtype)
        if total is not None:
            changed[f"total_{side}"] = max(0, total - int(cu[-1]) + int(ends[-1]))
        if longest >= 0:
            fewer = max(lengths, default=0) - max(new, default=0)
            changed[f"max_seqlen_{side}"] = max(0, longest - fewer)
        expected = getattr(call, f"lengths_{side}_expected")
        if expected is not None and expected.shape == (len(lengths),):
            off = edit([e - n for e, n in zip(expected.tolist(), lengths, strict=True)])
            kept = torch.tensor([max(0, n + more) for n, more in zip(new, off, strict=True)])
            changed[f"lengths_{side}_expected"] = kept.to(expected.dtype)
            if total is not None:
                changed[f"total_{side}"] = max(0, int(total - expected.sum() + kept.sum()))
    return replace(subject, call=replace(call, **changed))


def _text_steps(call: StructuredOutputCall) -> Iterator[Step]:
    """Cut ever smaller pieces out of the text, from its end."""
    size = len(call.text)
    piece = size
    while piece >= 1 and size <= 1_000_000:
        for end in range(size, 0, -piece):
            yield lambda subject, size=piece, end=end: _cut(subject, max(0, end - size), end)  # type: ignore[misc]
        piece //= 2
        if size // max(1, piece) > 512:
            return


def _cut(subject: Subject, start: int, end: int) -> Subject | None:
    call: Any = subject.call
    text = call.text
    if start >= len(text):
        return None
    return replace(subject, call=replace(call, text=text[:start] + text[end:]))
