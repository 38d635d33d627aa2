"""The cache object that Transformers writes keys and values to: pages, sums and a gather.

Axes: R rows · S positions a row · T = R*S tokens · K key/value heads · E head size · B page size ·
n pages a row · L = n*B key positions.
"""

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from tocsin.core.calls import KVUpdateCall
from tocsin.core.seams import Seams
from tocsin.core.terms import Operator
from tocsin.engine.pages import PagePool


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
    ) -> None:
        """Work out all addresses once, for all depths."""
        super().__init__(layers=[])
        depth, width = pool.data.shape[1], pool.data.shape[4]
        device = pool.data.device
        self.block_table, self.slots, self.seq_lens = block_table, slots, seq_lens
        self.position_ids, self.owners = position_ids, owners
        self._pool, self._seams, self._heads = pool, seams, key_heads
        self._kept = (slots >= 0).nonzero().flatten()
        self._keeps_all = len(self._kept) == len(slots)
        page, offset = slots[self._kept] // pool.page_size, slots[self._kept] % pool.page_size
        halves = torch.arange(depth * 2).view(depth, 2, 1) * pool.page_size
        rows = page * (depth * 2 * pool.page_size) + offset
        # Row of the pool seen as [P * depth * 2 * B, width]: [depth, 2, tokens kept].
        self.addresses = (halves + rows).to(device)
        self._by_depth = self.addresses.view(depth, -1)
        pages = block_table.clamp(min=0).flatten().to(device)
        self._gather = pages * (depth * 2) + torch.arange(depth * 2, device=device)[:, None]
        self._rows = pool.data.view(-1, width)
        self._pages = pool.data.view(-1, pool.page_size * width)
        self._written = pool.data.new_empty((depth, 2, len(self._kept), width))
        self._kept = self._kept.to(device)

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
        tokens, width = len(self.slots), self._rows.shape[1]
        new_key = key_states.transpose(1, 2).reshape(tokens, width)
        new_value = value_states.transpose(1, 2).reshape(tokens, width)
        written = self._written[layer_idx]
        written[0] = new_key if self._keeps_all else new_key[self._kept]
        written[1] = new_value if self._keeps_all else new_value[self._kept]
        self._rows.index_copy_(0, self._by_depth[layer_idx], written.view(-1, width))
        if self._seams.wanted(Operator.KV_UPDATE):
            self._announce(layer_idx, new_key, new_value)
        rows = self.block_table.shape[0]
        k, v = (
            self._pages.index_select(0, self._gather[2 * layer_idx + half])
            .view(rows, -1, self._heads, width // self._heads)
            .transpose(1, 2)
            for half in (0, 1)
        )
        return k, v

    def record_sums(self) -> None:
        """Record the sums of all rows of this step, from what was to be written."""
        sums = self._written.view(torch.int64).sum(-1)
        self._pool.sums.view(-1).index_copy_(0, self.addresses.flatten(), sums.flatten())

    def _announce(self, depth: int, new_key: Tensor, new_value: Tensor) -> None:
        heads = (self._heads, new_key.shape[1] // self._heads)
        memory = self._pool.data[:, depth]
        cache = memory.view(*memory.shape[:-1], *heads)
        self._seams.emit(
            KVUpdateCall(
                depth=depth,
                rows=self.block_table.shape[0],
                key_cache=cache[:, 0],
                value_cache=cache[:, 1],
                new_key=new_key.view(-1, *heads),
                new_value=new_value.view(-1, *heads),
                slot_mapping=self.slots,
                block_table=self.block_table,
                seq_lens=self.seq_lens,
                position_ids=self.position_ids,
                owners=self.owners,
            )
        )
