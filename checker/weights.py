"""64-bit sums of every weight tile, verified round robin, and the cold copy that repairs a tile."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from tocsin.core.errors import HealError

TILE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, order=True)
class Tile:
    """A stretch of one tensor: bytes [index * TILE_BYTES, (index + 1) * TILE_BYTES)."""

    tensor: str
    index: int

    def __str__(self) -> str:
        """`model.layers.3.mlp.down_proj.weight[tile 2]`."""
        return f"{self.tensor}[tile {self.index}]"


class ColdCopy(Protocol):
    """Where the true bytes of a tensor are kept."""

    def bytes_of(self, tensor: str) -> Tensor:
        """All bytes of one tensor, uint8, on the host."""
        ...


class MemoryCopy:
    """A copy of all tensors in host memory."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy them now."""
        self._bytes = {
            name: _bytes_view(tensor.detach()).to("cpu", copy=True)
            for name, tensor in tensors.items()
        }

    def bytes_of(self, tensor: str) -> Tensor:
        """All bytes of one tensor, uint8."""
        return self._bytes[tensor]


class SafetensorsCopy:
    """The safetensors files that the model was loaded from; what they lack is kept in memory."""

    def __init__(self, tensors: Mapping[str, Tensor], files: Sequence[Path]) -> None:
        """Look up which file holds which tensor in the same type and shape."""
        from safetensors import safe_open

        self._file_of: dict[str, Path] = {}
        for path in files:
            with safe_open(path, framework="pt") as reader:
                for name in set(reader.keys()) & set(tensors):
                    same = reader.get_tensor(name)
                    mine = tensors[name]
                    if same.dtype == mine.dtype and same.shape == mine.shape:
                        self._file_of[name] = path
        rest = {name: tensor for name, tensor in tensors.items() if name not in self._file_of}
        self._memory = MemoryCopy(rest)

    def bytes_of(self, tensor: str) -> Tensor:
        """All bytes of one tensor, uint8."""
        if tensor not in self._file_of:
            return self._memory.bytes_of(tensor)
        from safetensors import safe_open

        with safe_open(self._file_of[tensor], framework="pt") as reader:
            return _bytes_view(reader.get_tensor(tensor))


class WeightStore:
    """Sums of all parameters and floating buffers as they were when the model was known good.

    Rotary frequencies (`inv_freq`) and norm weights are weights here.

    Args:
        model: at the moment of loading.
        files: safetensors files to repair from; none: a copy is kept in host memory.
    """

    def __init__(
        self, model: nn.Module, files: Sequence[Path] = (), tile_bytes: int = TILE_BYTES
    ) -> None:
        """Sum every tile once; about 0.1 s a gigabyte.

        Raises:
            ValueError: `tile_bytes` is not a positive multiple of eight.
        """
        if tile_bytes <= 0 or tile_bytes % 8:
            raise ValueError(f"weights: tile_bytes is {tile_bytes}, expected a multiple of 8")
        self._model = model
        self._tile_bytes = tile_bytes
        with torch.inference_mode(mode=False), torch.no_grad():
            tensors = dict(_tensors(model))
            self._sums = {name: self._sum(tensor) for name, tensor in tensors.items()}
            self._cold: ColdCopy = SafetensorsCopy(tensors, files) if files else MemoryCopy(tensors)
        self._cursor = 0
        self._names = tuple(self._sums)
        self._ring = tuple(
            Tile(name, index) for name in self._names for index in range(self._sums[name].numel())
        )

    @property
    def tiles(self) -> int:
        """Number of tiles."""
        return len(self._ring)

    def digest(self) -> str:
        """Names the bits of all weights as they were at load: 16 hex digits."""
        found = hashlib.sha256()
        for name, sums in sorted(self._sums.items()):
            found.update(name.encode())
            found.update(sums.cpu().numpy().tobytes())
        return found.hexdigest()[:16]

    def verify(self, names: Sequence[str] | None = None) -> tuple[Tile, ...]:
        """Tiles whose sum is no longer what it was at load.

        Args:
            names: tensors to look at; None: all.
        """
        tensors = dict(_tensors(self._model))
        bad: list[Tile] = []
        for name in self._names if names is None else names:
            now = self._sum(tensors[name])
            wrong = torch.nonzero(now != self._sums[name]).flatten().tolist()
            bad += [Tile(name, index) for index in wrong]
        return tuple(bad)

    def scrub(self, budget_bytes: int) -> tuple[tuple[Tile, ...], Tensor, Tensor]:
        """Sum the next few tiles, round robin; nothing waits for the device.

        Returns:
            the tiles looked at, their sums now [n] and as recorded [n], int64, where the weights
            are.
        """
        count = min(max(1, budget_bytes // self._tile_bytes), self.tiles)
        tiles = tuple(self._ring[(self._cursor + i) % self.tiles] for i in range(count))
        self._cursor = (self._cursor + count) % self.tiles
        now = [self._sum_tile(tile) for tile in tiles]
        recorded = [self._sums[tile.tensor][tile.index] for tile in tiles]
        return tiles, torch.stack(now), torch.stack(recorded)

    def repair(self, tile: Tile) -> None:
        """Copy the tile's true bytes back, and verify.

        Raises:
            HealError: the tile still has another sum than at load.
        """
        start = tile.index * self._tile_bytes
        stop = start + self._tile_bytes
        with torch.no_grad():
            tensor = self._tensor(tile.tensor)
            true = self._cold.bytes_of(tile.tensor)
            if tensor.is_contiguous():
                _bytes_view(tensor)[start:stop].copy_(true[start:stop])
            else:
                tensor.copy_(true.to(tensor.device).view(tensor.dtype).view(tensor.shape))
        if bool(self._sum_tile(tile) != self._sums[tile.tensor][tile.index]):
            raise HealError(
                f"weights: {tile} still has another sum after the copy from the cold copy, "
                "expected the sum taken at load; restart the replica from the weight files"
            )

    def _tensor(self, name: str) -> Tensor:
        owner, _, attribute = name.rpartition(".")
        tensor = getattr(self._model.get_submodule(owner), attribute)
        if not isinstance(tensor, Tensor):
            raise TypeError(f"weights: {name} is {type(tensor).__name__}, expected a tensor")
        return tensor

    def _sum_tile(self, tile: Tile) -> Tensor:
        data = _bytes_view(self._tensor(tile.tensor).detach())
        start = tile.index * self._tile_bytes
        return _word_sum(data[start : start + self._tile_bytes])

    def _sum(self, tensor: Tensor) -> Tensor:
        """int64 [tiles]: sum of the 64-bit words of each tile, see `_weighted`."""
        data = _bytes_view(tensor.detach())
        whole = data.numel() // self._tile_bytes
        parts = []
        if whole:
            words = _words(data[: whole * self._tile_bytes])
            parts.append(_weighted(words.view(whole, -1)))
        if data.numel() > whole * self._tile_bytes:
            parts.append(_word_sum(data[whole * self._tile_bytes :])[None])
        if not parts:
            return torch.zeros(0, dtype=torch.int64, device=tensor.device)
        return torch.cat(parts)


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and floating buffers by name, tied ones once."""
    yield from model.named_parameters()
    for name, buffer in model.named_buffers():
        if buffer.is_floating_point():
            yield name, buffer


def _bytes_view(tensor: Tensor) -> Tensor:
    """The tensor's bytes in order, uint8; a view where it is contiguous."""
    return tensor.contiguous().view(-1).view(torch.uint8)


def _words(data: Tensor) -> Tensor:
    """Bytes as 64-bit words; a copy where the address is not aligned to them."""
    aligned = data.storage_offset() % 8 == 0
    return (data if aligned else data.clone()).view(torch.int64)


def _word_sum(data: Tensor) -> Tensor:
    """Sum of the whole 64-bit words of a tile and, as one more word, of the bytes that are left."""
    whole = data.numel() // 8 * 8
    if whole:
        total = _weighted(_words(data[:whole])[None])[0]
    else:
        total = torch.zeros((), dtype=torch.int64, device=data.device)
    if data.numel() > whole:
        rest = data[whole:].long()
        shifts = torch.arange(rest.numel(), device=data.device) * 8
        total = total + (rest << shifts).sum() * (2 * (whole // 8) + 1)
    return total


def _weighted(words: Tensor) -> Tensor:
    """[n] sum of each row's words [n,m], the i-th times 2i + 1, modulo 2^64.

    An odd factor loses no bit of its word, and unequal ones tell which word is where: two that
    change places change the sum.
    """
    count = words.shape[1]
    if words.device.type == "cpu" and hasattr(torch.ops.tocsin, "word_sums"):
        summed: Tensor = torch.ops.tocsin.word_sums(words, True)  # the memory's own speed
        return summed
    factors = _odd_numbers(1 << max(0, count - 1).bit_length(), words.device)[:count]
    if words.device.type == "cpu":  # one pass; elsewhere there is no product of integer matrices
        return words.mv(factors)
    return torch.stack([(row * factors).sum() for row in words])


@cache
def _odd_numbers(count: int, device: torch.device) -> Tensor:
    with torch.inference_mode(mode=False):
        return 2 * torch.arange(count, device=device) + 1
