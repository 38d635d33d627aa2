"""Sums of keys and values taken when they are written, which no fault of a page can touch.

Axes: R rows · K key/value heads · E head size · W = K*E · B page size · P pages · n pages a row ·
L = n*B key positions · T tokens of a step.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tocsin.engine.pages import NULL_PAGE, PagePool


@dataclass(frozen=True, slots=True)
class Places:
    """Where the ledger says that a step writes, whatever the step's own metadata says.

    Attributes:
        table: [R,n] int64 page of each block of a row, -1 beyond its end.
        starts: position of the first token that each row writes.
        counts: number of tokens that each row writes; 0 for an idle row.
    """

    table: Tensor
    starts: tuple[int, ...]
    counts: tuple[int, ...]

    def slots(self, page_size: int) -> list[int]:
        """Slot (page * page_size + offset) of each token of the rows that are not idle."""
        return [
            int(line[at // page_size]) * page_size + at % page_size
            for line, start, count in zip(self.table, self.starts, self.counts, strict=True)
            for at in range(start, start + count)
        ]


class WrittenSums:
    """The state of each row before a step, and what the step adds to it.

    The state of a row is kept at the page of its last token and covers all tokens up to it: sum
    of the keys, smallest and largest value of each feature, largest key norm of each head. So a
    shared prefix brings its state along, and a step is taken back by writing the old one again.

    Args:
        pool: the pages.
        places: by the ledger.
        written: [depth,2,T,W] what the step is about to write, filled while it runs.
    """

    def __init__(self, pool: PagePool, places: Places, written: Tensor) -> None:
        """Fetch the states of all rows and depths, once a step."""
        self._pool, self._places, self._written = pool, places, written
        self._rows = len(places.counts)
        self._per_row = written.shape[2] // self._rows
        size, device = pool.page_size, pool.data.device
        spans = tuple(zip(places.starts, places.counts, strict=True))
        before = [
            line[(start - 1) // size] if count and start else NULL_PAGE
            for line, (start, count) in zip(places.table.tolist(), spans, strict=True)
        ]
        idle = [row for row, (_, count) in enumerate(spans) if not count]
        self._idle = torch.tensor(idle, dtype=torch.int64)
        fresh = [row for row, (start, count) in enumerate(spans) if count and not start]
        self._kept = [row for row, page in enumerate(before) if page != NULL_PAGE]
        self._before = torch.tensor(before).to(device)
        self._base = tuple(state.index_select(1, self._before) for state in pool.states)
        for base, empty in zip(self._base, pool.unwritten, strict=True):  # [depth,R,W] or [...,K]
            if fresh:
                base[:, torch.tensor(fresh)] = empty
            if len(self._idle):
                base[:, self._idle] = 0.0
        self._pages = places.table.clamp(min=0).to(device)
        live = [row for row, (_, count) in enumerate(spans) if count]
        self._live = torch.tensor(live, dtype=torch.int64).to(device)
        self._at = torch.tensor([places.starts[row] for row in live]).to(device)
        self._step: _Decoding | None = None
        self._recorded = False

    def of(self, depth: int) -> Mapping[str, Tensor]:
        """Fields of an AttentionCall in decoding, the tokens of this step included.

        Returns:
            empty in a prefill chunk, whose queries see different keys.
        """
        if self._per_row != 1:
            return {}
        if self._step is None:
            marks = self._pool.marks.index_select(2, self._pages.flatten())
            # [2,depth,R*n,K,B] as [2,depth,R,K,L]
            marks = marks.view(*marks.shape[:2], self._rows, -1, *marks.shape[-2:])
            self._step = _Decoding(
                marks.transpose(3, 4).flatten(4).contiguous(),
                self._base,
                self._written,
                self._live,
                self._at,
                self._idle,
            )
        return self._step.of(depth)

    def record(self) -> None:
        """Keep states and marks of all tokens of this step, for all depths at once."""
        if not len(self._live):
            return
        self._recorded = True
        pages, slots, states = self._decoded() if self._per_row == 1 else self._prefilled()
        for kept, state in zip(self._pool.states, states, strict=True):
            kept.index_copy_(1, pages, state)
        if self._step is not None and self._step.complete:
            marks = self._step.new_marks()  # [2,depth,K,rows that live]
        else:
            marks = marks_of(self._written[:, 1], self._pool.heads)  # [2,depth,K,T]
            if len(self._live) < self._rows:
                by_row = marks.view(*marks.shape[:3], self._rows, self._per_row)
                marks = by_row[:, :, :, self._live].flatten(3)
        size = self._pool.page_size
        # The two indices stand apart, so that their axis comes first.
        page, offset = slots.div(size, rounding_mode="floor"), slots % size
        self._pool.marks[:, :, page, :, offset] = marks.permute(3, 0, 1, 2)

    def take_back(self, row: int | None = None) -> None:
        """Put the states back as they were before the step, for one row or for all."""
        if not self._recorded:
            return
        kept_rows = [one for one in self._kept if row is None or one == row]
        if kept_rows:
            rows = torch.tensor(kept_rows)
            for kept, base in zip(self._pool.states, self._base, strict=True):
                kept.index_copy_(1, self._before[rows], base[:, rows])

    def _decoded(self) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """One token a row, all rows at once: pages and slots written, and the states there."""
        states: tuple[Tensor, ...]
        if self._step is not None and self._step.complete:
            states = self._step.states
        else:
            keys, values = self._written.unbind(1)  # [depth,R,W]
            total, low, high, reach = self._base
            states = (
                total + keys,
                torch.minimum(low, values),
                torch.maximum(high, values),
                torch.maximum(reach, _norms(keys, self._pool.heads)),
            )
        size = self._pool.page_size
        pages = self._pages[self._live, self._at // size]
        if len(self._live) < self._rows:
            states = tuple(state[:, self._live] for state in states)
        return pages, pages * size + self._at % size, states

    def _prefilled(self) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """Row after row and page after page: pages and slots written, and the states there."""
        size, table = self._pool.page_size, self._places.table.tolist()
        heads = self._pool.heads
        pages: list[int] = []
        slots: list[int] = []
        states: list[tuple[Tensor, ...]] = []
        for row in self._live.tolist():
            first, start = row * self._per_row, self._places.starts[row]
            state, done = tuple(base[:, row] for base in self._base), 0
            while done < self._per_row:
                page, offset = table[row][(start + done) // size], (start + done) % size
                more = min(self._per_row - done, size - offset)
                tokens = slice(first + done, first + done + more)
                keys, values = self._written[:, :, tokens].unbind(1)
                state = extended(state, keys, values, heads)
                pages.append(page)
                states.append(state)
                slots += range(page * size + offset, page * size + offset + more)
                done += more
        device = self._pool.data.device
        stacked = tuple(torch.stack(parts, dim=1) for parts in zip(*states, strict=True))
        return torch.tensor(pages).to(device), torch.tensor(slots).to(device), stacked


class _Decoding:
    """What attention is told, depth after depth: every tensor is made once a step, for all.

    A decode step asks for each of some thirty depths, so a view or a copy here costs thirty.
    """

    def __init__(
        self,
        marks: Tensor,
        base: tuple[Tensor, ...],
        written: Tensor,
        live: Tensor,
        at: Tensor,
        idle: Tensor,
    ) -> None:
        """Copy the states, and lay out the marks of all keys: [2,depth,R,K,L]."""
        _, depth, rows, heads, length = marks.shape
        self._idle = idle
        self._done: dict[int, Mapping[str, Tensor]] = {}
        written = written.view(depth, 2, rows, heads, -1)
        self._written = written.unbind(0)
        self._halves = tuple(half.unbind(0) for half in written.unbind(1))
        total, low, high, reach = self.states = tuple(one.clone() for one in base)
        self._marks, self._at = marks, at
        shape = (depth, rows, heads, -1)
        self._total, self._low, self._high = (
            one.view(shape).unbind(0) for one in (total, low, high)
        )
        self._reach = reach.unbind(0)
        self._sums, self._norms = (half.unbind(0) for half in marks.unbind(0))
        self._flat = tuple(half.view(depth, -1).unbind(0) for half in marks.unbind(0))
        head = torch.arange(heads, device=live.device)
        self._places = ((live[:, None] * heads + head) * length + at[:, None]).flatten()
        self._live = live if len(live) < rows else None
        self._rows_that_live = live

    @property
    def complete(self) -> bool:
        """Every depth was asked for: `states` [depth,R,W] or [depth,R,K] hold this step's token."""
        return len(self._done) == len(self._halves[0])

    def new_marks(self) -> Tensor:
        """[2,depth,K,rows that live] sum and norm of what each row wrote."""
        rows = self._rows_that_live
        return self._marks[:, :, rows, :, self._at].permute(1, 2, 3, 0)

    def of(self, depth: int) -> Mapping[str, Tensor]:
        """The fields of one depth; asked again, the same ones."""
        if depth in self._done:
            return self._done[depth]
        keys, values = self._halves[0][depth], self._halves[1][depth]
        total, low, high, reach = (
            self._total[depth],
            self._low[depth],
            self._high[depth],
            self._reach[depth],
        )
        total.add_(keys)
        torch.minimum(low, values, out=low)
        torch.maximum(high, values, out=high)
        norms: Tensor = torch.linalg.vector_norm(self._written[depth], dim=-1, dtype=torch.float32)
        torch.maximum(reach, norms[0], out=reach)
        if len(self._idle):  # they look at the null page, which is zero
            for one in (total, low, high, reach):
                one[self._idle] = 0.0
        new = values.sum(dim=-1, dtype=torch.float32), norms[1]
        for flat, mark in zip(self._flat, new, strict=True):
            mark = mark if self._live is None else mark[self._live]
            flat[depth].index_copy_(0, self._places, mark.view(-1))
        self._done[depth] = found = {
            "key_sums": total,
            "key_reach": reach,
            "value_sums": self._sums[depth],
            "value_norms": self._norms[depth],
            "value_low": low,
            "value_high": high,
        }
        return found


def extended(
    state: tuple[Tensor, ...], keys: Tensor, values: Tensor, heads: int
) -> tuple[Tensor, ...]:
    """A sequence's state [depth,W] with some tokens more, keys and values [depth,T,W]."""
    total, low, high, reach = state
    return (
        total + keys.sum(dim=1, dtype=torch.float64),
        torch.minimum(low, values.amin(dim=1).float()),
        torch.maximum(high, values.amax(dim=1).float()),
        torch.maximum(reach, _norms(keys, heads).amax(dim=1)),
    )


def _norms(rows: Tensor, heads: int) -> Tensor:
    """[...,K] float32 norm of each head's part of a key or value [...,W]."""
    by_head = rows.view(*rows.shape[:-1], heads, -1)
    norms: Tensor = torch.linalg.vector_norm(by_head, dim=-1, dtype=torch.float32)
    return norms


def marks_of(values: Tensor, heads: int) -> Tensor:
    """[2,depth,K,T] float32: sum over the features of each head's value, and its norm.

    Args:
        values: [depth,T,W].
    """
    sums = values.view(*values.shape[:-1], heads, -1).sum(dim=-1, dtype=torch.float32)
    return torch.stack((sums, _norms(values, heads))).transpose(2, 3)
