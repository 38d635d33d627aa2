"""What torch.compile must know of the operators without running them: shapes and dtypes.

The `_into` forms return nothing and need no more than their schema, which says what they change.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

_LISTED = {
    "linear_checksum": 2,
    "rms_norm": 3,
    "residual": 2,
    "swiglu": 2,
    "rope": 3,
    "attention": 5,
    "kv_written": 2,
    "logits": 3,
    "embedding": 2,
    "rope_table": 1,
    "magnitude": 1,
}
"""Operator → number of results [k,n,T]."""

_HEADS_FIRST = frozenset({"rope", "attention"})


def register() -> None:
    """Tell torch of every operator; called once, after the library was loaded."""
    for name, kinds in _LISTED.items():
        torch.library.register_fake(f"tocsin::{name}", _fake(name, kinds))
        torch.library.register_fake(f"tocsin::{name}_into", _nothing)
    torch.library.register_fake("tocsin::write_into", _nothing)
    torch.library.register_fake("tocsin::verdict", _verdict)
    torch.library.register_fake("tocsin::reading", _reading)
    torch.library.register_fake("tocsin::word_sums", _word_sums)
    torch.library.register_fake("tocsin::word_sums_at", _word_sums_at)


def _fake(name: str, kinds: int) -> Callable[..., Tensor]:
    """A function of the operator's arguments that returns an empty [k,n,T]."""

    def fake(first: Sequence[Tensor] | Tensor, *rest: Any, **options: Any) -> Tensor:
        calls = [first] if isinstance(first, Tensor) else list(first)
        if not calls:
            return torch.empty((kinds, 0, 0), dtype=torch.float32)
        heads = rest[0] if name == "magnitude" and rest else options.get("heads", 0)
        count = _tokens(name, calls[0], heads, rest)
        return calls[0].new_empty((kinds, len(calls), count), dtype=torch.float32)

    return fake


def _tokens(name: str, first: Tensor, heads: int, rest: Sequence[Any]) -> Any:
    """T of one call."""
    shape = first.shape
    if name == "kv_written":
        return rest[3].numel()
    if name == "embedding":
        return first.numel()
    if name == "rope_table":
        return rest[3] * shape[1]
    if name in _HEADS_FIRST or (name == "magnitude" and heads == 1):
        return shape[0] * shape[2]
    if name == "magnitude" and heads == 2:
        return shape[0]
    return first.numel() // shape[-1]


def _nothing(*args: Any, **options: Any) -> None:
    """An operator that only changes its buffer."""


def _verdict(buffer: Tensor, levels: Tensor) -> Tensor:
    return buffer.new_empty((buffer.shape[0],))


def _reading(buffer: Tensor, levels: Tensor, sites: int) -> Tensor:
    return buffer.new_empty((sites,))


def _word_sums(data: Tensor, weighted: bool = False) -> Tensor:
    return data.new_empty(data.shape[:-1], dtype=torch.int64)


def _word_sums_at(data: Tensor, indices: Tensor, weighted: bool = False) -> Tensor:
    return data.new_empty((indices.shape[0], *data.shape[1:-1]), dtype=torch.int64)
