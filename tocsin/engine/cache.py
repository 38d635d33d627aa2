"""The cache object that Transformers writes keys and values to: pages, sums and a gather.

Axes: R rows · S positions a row · T = R*S tokens · K key/value heads · E head size · B page size ·
n pages a row · L = n*B key positions.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from tocsin.core.calls import KVUpdateCall
from tocsin.core.seams import Log, Seams
from tocsin.core.terms import Operator
from tocsin.engine.fused import operators
from tocsin.engine.noted import sums_of_step
from tocsin.engine.pages import PagePool
from tocsin.engine.word_sums import word_sums
from tocsin.engine.written import Places, WrittenSums


class PagedCache(Cache):
    """One step's way into the pages.

    Args:
        pool: the pages.
        seams: where each write is announced.
        block_table: [R,n] int64 page of each block of a row, -1 beyond its end.
        slots: [T] flat slot (page * B + offset) of each token, -1 for one that is not kept.
        seq_lens: [R] length of each row after the step, 0 for an idle row.
        position_ids: [T].
        owners: [P] row that owns each page, -1 where shared or free.
        key_heads: K.
        places: where the ledger says that the step writes.
        keeps_sums: somebody listens who needs the sums of what is written; else the pages note
            that they have none.
        verifies: compare the sums of all pages as they are read, where operators can.

    Attributes:
        state: sums of what is written, for the checks of attention; None where none are kept.
        changed: [R,n] int64 token rows of each page that attention read with another sum than the
            recorded one; None where they are not compared.
    """

    def __init__(
        self,
        pool: PagePool,
        seams: Seams,
        *,
        block_table: Tensor,
        slots: Tensor,
        seq_lens: Tensor,
        position_ids: Tensor,
        owners: Tensor,
        key_heads: int,
        places: Places,
        keeps_sums: bool = True,
        verifies: bool = False,
    ) -> None:
        """Work out all addresses once, for all depths."""
        super().__init__(layers=[])
        depth, width = pool.data.shape[1], pool.data.shape[4]
        device = pool.data.device
        self.slots = slots
        # The record of an update lies where its cache does, whole: checks compute on it there.
        self._table, self._mapping = block_table.to(device), slots.to(device)
        self._lens, self._owners = seq_lens.to(device), owners.to(device)
        self._positions = position_ids.to(device)
        self._pool, self._seams, self._heads = pool, seams, key_heads
        self._kept = (slots >= 0).nonzero().flatten()
        self._keeps_all = len(self._kept) == len(slots)
        page, offset = slots[self._kept] // pool.page_size, slots[self._kept] % pool.page_size
        halves = torch.arange(depth * 2).view(depth, 2, 1) * pool.page_size
        rows = page * (depth * 2 * pool.page_size) + offset
        # Row of the pool seen as [P * depth * 2 * B, width]: [depth, 2, tokens kept].
        self.addresses = (halves + rows).to(device)
        self._by_depth = self.addresses.view(depth, -1)
        self._pages_Rn = block_table.clamp(min=0).to(device)
        self._gather: Tensor | None = None
        self._rows = pool.data.view(-1, width)
        self._pages = pool.data.view(-1, pool.page_size * width)
        self._written = pool.data.new_empty((depth, 2, len(slots), width))
        self._kept = self._kept.to(device)
        self._operators = operators(pool.data)
        self._sums = pool.sums if keeps_sums else None
        self._new: list[tuple[Tensor, ...]] | None = None
        # Who listens may change while a step is under way, when a fault is armed: then it hears.
        self._logs = seams.logs
        self._log = Log()
        self._entries: list[Any] = [None] * depth
        if self._operators is not None and Operator.KV_UPDATE in seams.logs:
            self._log = seams.logs[Operator.KV_UPDATE]
            # All at once: between two operators of the model each takes several times as long.
            self._entries = [seams.entry_of(self._call(at)) for at in range(depth)]
        self.changed: Tensor | None = None
        if verifies and keeps_sums and self._operators is not None:
            self.changed = torch.zeros_like(self._pages_Rn)
        self._expected = None if self.changed is None else pool.sums
        self.state: WrittenSums | None = None
        if keeps_sums:
            self.state = sums_of_step(pool, places, self._written, self._operators)
        else:
            pool.unsummed.update(slot for slot in slots.tolist() if slot >= 0)
            pool.unsummed.update(places.slots(pool.page_size))

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        layer_idx: int,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor]:
        """Write the new rows, announce it, and gather all rows of the step.

        Args:
            key_states, value_states: [R,K,S,E].

        Returns:
            k and v [R,K,L,E], whole pages; what lies beyond a row's length is not cleared.
        """
        fused = self._operators
        if fused is None:
            return self._update(key_states, value_states, layer_idx)
        data = self._pool.data
        fused.write_pages(
            data, self._sums, self._written, key_states, value_states, self._mapping, layer_idx
        )
        entry = self._entries[layer_idx]
        if entry is not None and self._seams.logs is self._logs:
            self._log.put(entry)
        elif self._seams.wanted(Operator.KV_UPDATE):
            self._seams.emit(self._call(layer_idx))
        return fused.read_pages(
            data, self._pages_Rn, layer_idx, self._heads, self._expected, self.changed
        )

    @property
    def noted(self) -> Callable[[int], Mapping[str, Tensor]]:
        """Gives the fields of a depth's AttentionCall that were taken at the write."""
        return _nothing_noted if self.state is None else self.state.of

    def record_sums(self) -> None:
        """Record the sums of all rows of this step, from what was to be written."""
        if self.state is None:
            return
        if self._operators is None:  # else they were recorded with the write
            sums = word_sums(self._written)
            if not self._keeps_all:
                sums = sums[:, :, self._kept]
            self._pool.sums.view(-1).index_copy_(0, self.addresses.flatten(), sums.flatten())
        self.state.record()

    def _update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int
    ) -> tuple[Tensor, Tensor]:
        """The same with torch alone."""
        tokens, width = len(self.slots), self._rows.shape[1]
        new_key = key_states.transpose(1, 2).reshape(tokens, width)
        new_value = value_states.transpose(1, 2).reshape(tokens, width)
        written = self._written[layer_idx]
        written[0], written[1] = new_key, new_value
        kept = written if self._keeps_all else written[:, self._kept]
        self._rows.index_copy_(0, self._by_depth[layer_idx], kept.reshape(-1, width))
        if self._seams.wanted(Operator.KV_UPDATE):
            self._seams.emit(self._call(layer_idx))
        if self._gather is None:
            halves = torch.arange(2 * self._pool.data.shape[1], device=self._table.device)
            self._gather = self._pages_Rn.flatten() * len(halves) + halves[:, None]
        rows = self._table.shape[0]
        k, v = (
            self._pages.index_select(0, self._gather[2 * layer_idx + half])
            .view(rows, -1, self._heads, width // self._heads)
            .transpose(1, 2)
            for half in (0, 1)
        )
        return k, v

    def _call(self, depth: int) -> KVUpdateCall:
        """What is told of one depth's write; it points at what is to be written."""
        if self._new is None:  # of each depth the new keys and values [T,K,E], for all at once
            written = self._written.view(*self._written.shape[:-1], self._heads, -1)
            self._new = [tuple(pair.unbind(0)) for pair in written.unbind(0)]
        new_key, new_value = self._new[depth]
        key_cache, value_cache = self._pool.by_depth[depth]
        return KVUpdateCall(
            depth=depth,
            rows=self._table.shape[0],
            key_cache=key_cache,
            value_cache=value_cache,
            new_key=new_key,
            new_value=new_value,
            slot_mapping=self._mapping,
            block_table=self._table,
            seq_lens=self._lens,
            position_ids=self._positions,
            owners=self._owners,
        )


def _nothing_noted(depth: int) -> Mapping[str, Tensor]:
    return {}
