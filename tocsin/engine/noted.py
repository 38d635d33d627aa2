"""The sums of `written` in one operator a layer, and those of what was written without any.

Axes: R rows · K key/value heads · W values of a token · B page size · n pages a row · L = n*B.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from tocsin.engine.fused import Operators
from tocsin.engine.pages import PagePool
from tocsin.engine.word_sums import word_sums
from tocsin.engine.written import Places, WrittenSums, extended, marks_of

FIELDS = ("key_sums", "value_low", "value_high", "key_reach", "value_sums", "value_norms")
"""Of an AttentionCall, in the order in which the operators hold them."""


def sums_of_step(
    pool: PagePool, places: Places, written: Tensor, operators: Operators | None
) -> WrittenSums:
    """Who keeps the sums of a step; a chunk of a prompt is left to torch."""
    if operators is None or written.shape[2] != len(places.counts):
        return WrittenSums(pool, places, written)
    return NotedSums(pool, places, written, operators)


class NotedSums(WrittenSums):
    """The same in a decode step, where each row writes one token."""

    def __init__(
        self, pool: PagePool, places: Places, written: Tensor, operators: Operators
    ) -> None:
        """Room for the states of all rows and depths; nothing is computed yet."""
        self._pool, self._places = pool, places
        self._operators = operators
        depth, _, self._rows, width = written.shape
        self._per_row = 1
        self._pages = places.table.clamp(min=0)
        spans = zip(places.starts, places.counts, strict=True)
        self._position = torch.tensor([start if count else -1 for start, count in spans])
        heads, length = pool.heads, self._pages.shape[1] * pool.page_size
        wide, narrow = (depth, self._rows, width), (depth, self._rows, heads)
        self._row_states = [
            torch.empty(wide, dtype=torch.float64),
            torch.empty(wide),
            torch.empty(wide),
            torch.empty(narrow),
            torch.empty((2, *narrow, length)),
        ]
        self._pool_states = [*pool.states, pool.marks]
        self._given = written, self._pool_states, self._pages, self._position, self._row_states
        self._fields: list[dict[str, Tensor]] = []
        self._done = [False] * depth
        self._old: tuple[Tensor, ...] | None = None

    def of(self, depth: int) -> Mapping[str, Tensor]:
        """Fields of an AttentionCall, the tokens of this step included; computed once."""
        if not self._done[depth]:
            if not self._fields:
                self._fields = self._by_depth()
            self._done[depth] = True
            # Called here, not through `_note`: this runs between two operators of the model.
            self._operators.note_written(*self._given, depth, depth + 1)
        return self._fields[depth]

    def record(self) -> None:
        """Keep states and marks of all tokens of this step, for all depths at once."""
        if not any(self._done):
            self._note(0, len(self._done))
        else:
            for depth in [at for at, done in enumerate(self._done) if not done]:
                self._note(depth, depth + 1)
        self._old = self._operators.keep_written(
            self._pool_states, self._pages, self._position, self._row_states
        )

    def take_back(self, row: int | None = None) -> None:
        """Put the states back as they were before the step, for one row or for all.

        Where a row began a page, the state before the step is on another one, untouched.
        """
        if self._old is None:
            return
        size = self._pool.page_size
        at = self._position.tolist()
        rows = [one for one in range(self._rows) if row in (None, one) and at[one] % size > 0]
        rows = [one for one in rows if at[one] >= 0]
        if rows:
            index = torch.tensor(rows)
            pages = self._pages[index, self._position[index] // size]
            for kept, old in zip(self._pool.states, self._old, strict=True):
                kept.index_copy_(1, pages, old[:, index])

    def _note(self, first: int, last: int) -> None:
        self._operators.note_written(*self._given, first, last)
        self._done[first:last] = [True] * (last - first)

    def _by_depth(self) -> list[dict[str, Tensor]]:
        """Of each depth the tensors of FIELDS: [R,K,E] three times, [R,K], [R,K,L] twice.

        All at once: between two matrix products the same work takes several times as long.
        """
        total, low, high, reach, marks = self._row_states
        shape = (*reach.shape, -1)
        parts = [one.view(shape).unbind(0) for one in (total, low, high)]
        parts += [reach.unbind(0), *(half.unbind(0) for half in marks.unbind(0))]
        return [dict(zip(FIELDS, one, strict=True)) for one in zip(*parts, strict=True)]


def catch_up(pool: PagePool, computed: Callable[[str], int]) -> None:
    """Sum what was written while nobody listened, as it is now; then nothing is without a sum.

    What changed in those pages before is not found: there is nothing that it could be compared
    with. A page that only the prefix index keeps is dropped from it, for nobody vouches for it.

    Args:
        computed: number of a running request's positions that are written and committed.
    """
    if not pool.unsummed:
        return
    offsets: dict[int, list[int]] = {}
    for slot in sorted(pool.unsummed):
        offsets.setdefault(slot // pool.page_size, []).append(slot % pool.page_size)
    for page, missing in offsets.items():
        at = torch.tensor(missing)
        pool.sums[page][:, :, at] = word_sums(pool.data[page][:, :, at].contiguous())
    pool.drop_cached(offsets)
    for request_id in pool.running():
        _catch_up_with(pool, pool.table(request_id), computed(request_id), offsets)
    pool.unsummed.clear()


def _catch_up_with(
    pool: PagePool, table: tuple[int, ...], length: int, offsets: dict[int, list[int]]
) -> None:
    """States and marks of one request, page after page; a page that others share counts once."""
    for index, page in enumerate(table):
        end = min(pool.page_size, length - index * pool.page_size)
        missing = [offset for offset in offsets.get(page, ()) if offset < end]
        if not missing:
            continue
        del offsets[page]
        first = missing[0]
        state: tuple[Any, ...]
        if first or index:
            before = page if first else table[index - 1]
            state = tuple(kept[:, before] for kept in pool.states)
        else:
            state = tuple(
                torch.full_like(kept[:, page], empty)
                for kept, empty in zip(pool.states, pool.unwritten, strict=True)
            )
        keys, values = pool.data[page][:, :, first:end].unbind(1)
        for kept, one in zip(pool.states, extended(state, keys, values, pool.heads), strict=True):
            kept[:, page] = one
        pool.marks[:, :, page, :, first:end] = marks_of(values, pool.heads)
