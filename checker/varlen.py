"""A lock on varlen metadata: one thread owns it, and what is launched is what was checked."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from tocsin.core.errors import ContractError


@dataclass(frozen=True, slots=True)
class VarlenMetadata:
    """Offsets and lengths of a packed batch: cu_seqlens_* [R+1] int32.

    Attributes:
        others: further integer tensors that say where a kernel reads or writes (block table,
            lengths of a cache, its batch index), of any shape.
    """

    cu_seqlens_q: Tensor
    cu_seqlens_k: Tensor
    max_seqlen_q: int
    max_seqlen_k: int
    others: tuple[Tensor, ...] = ()


class VarlenLock:
    """Owns the metadata of one launch at a time.

    Two threads that share a metadata buffer are a public bug pattern: one prepares the next batch
    while the other launches the last. Here the second gets an error instead of a mixed batch.
    """

    def __init__(self) -> None:
        """Nothing is owned yet."""
        self._mutex = threading.Lock()
        self._owner: int | None = None
        self._metadata: VarlenMetadata | None = None
        self._sum: tuple[int, ...] = ()

    @contextmanager
    def hold(self, metadata: VarlenMetadata) -> Iterator["VarlenLock"]:
        """Own the metadata until the launch has returned.

        Raises:
            ContractError: another thread owns metadata now.
        """
        with self._mutex:
            if self._owner is not None:
                raise ContractError(
                    f"varlen: thread {self._owner} owns the metadata, thread "
                    f"{threading.get_ident()} wanted it, expected one at a time; give each thread "
                    "its own metadata, or wait for the launch [memory.cu_seqlens]"
                )
            self._owner = threading.get_ident()
            self._metadata = metadata
            self._sum = checksum(metadata)
        try:
            yield self
        finally:
            with self._mutex:
                self._owner, self._metadata, self._sum = None, None, ()

    def edit(self, metadata: VarlenMetadata) -> None:
        """Replace the metadata, by its owner only.

        Raises:
            ContractError: the caller is not the thread that owns the metadata.
        """
        with self._mutex:
            self._demand_owner("edited")
            self._metadata = metadata
            self._sum = checksum(metadata)

    def launch(self) -> VarlenMetadata:
        """The metadata, if it is still what its owner put there.

        Raises:
            ContractError: the caller does not own it, or somebody wrote into it.
        """
        with self._mutex:
            self._demand_owner("launched")
            metadata = self._metadata
            if metadata is None or checksum(metadata) != self._sum:
                raise ContractError(
                    "varlen: the metadata changed after it was checked, expected no write before "
                    "the launch; look for a buffer shared between threads [memory.cu_seqlens]"
                )
            return metadata

    def _demand_owner(self, verb: str) -> None:
        if self._owner != threading.get_ident():
            owner = "nobody" if self._owner is None else f"thread {self._owner}"
            raise ContractError(
                f"varlen: metadata of {owner} was {verb} by thread {threading.get_ident()}, "
                "expected its owner; hold the lock first [memory.cu_seqlens]"
            )


def checksum(metadata: VarlenMetadata) -> tuple[int, ...]:
    """Position-weighted integer sums of all metadata tensors, their sizes and the two lengths.

    Reads device memory: on CUDA give it the host copy that the launch was made from.
    """
    parts: list[int] = [metadata.max_seqlen_q, metadata.max_seqlen_k]
    for offsets in (metadata.cu_seqlens_q, metadata.cu_seqlens_k, *metadata.others):
        weights = torch.arange(1, offsets.numel() + 1, device=offsets.device) * 2 + 1
        parts += [offsets.numel(), int((offsets.long().flatten() * weights).sum())]
    return tuple(parts)
