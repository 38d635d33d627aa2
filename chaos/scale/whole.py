"""Whole requests as arrays: their tokens one after another, each next to the golden one."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from numpy.typing import NDArray

from tocsin.chaos.scale.golden import GoldenTable
from tocsin.chaos.scale.rows import OUTCOMES
from tocsin.chaos.scale.tally import Mask

COLUMNS = [
    "phase",
    "request_id",
    "prompt_id",
    "t_invoke_ns",
    "t_end_ns",
    "stream",
    "outcome",
    "finish_reason",
    "usage_tokens",
    "text",
    "terminals",
    "malformed",
    "degraded",
    "chunk_t_ns",
    "chunk_index",
    "chunk_token",
    "chunk_text",
]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
FAR = np.iinfo(np.int64).max
"""In place of an index: nothing differs."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of R answers: N in all, in the order in which they are to be compared."""

    row_N: Ints
    place_N: Ints
    token_N: Ints
    length_R: Ints

    def first_difference(self, golden: GoldenTable, rank_R: Ints) -> Ints:
        """First place that is not as golden, `FAR` where all are, of answers with golden ones.

        A token beyond the golden end differs; that an answer ends early is not looked at.
        """
        first = np.full(len(self.length_R), FAR)
        if not len(golden.names):
            return first
        known = rank_R >= 0
        rank = np.where(known, rank_R, 0)
        ends_N = np.repeat(golden.length_P[rank], self.length_R)
        at_N = np.repeat(golden.start_P[rank], self.length_R) + self.place_N
        differs = self.place_N >= ends_N
        inside = np.append(golden.tokens_N, -1).take(at_N, mode="clip")
        differs |= inside != self.token_N
        if not known.all():
            differs &= np.repeat(known, self.length_R)
        where = np.flatnonzero(differs)
        rows, begin = np.unique(self.row_N[where], return_index=True)
        first[rows] = self.place_N[where][begin]
        return first


class Whole:
    """R whole requests of the history."""

    def __init__(self, table: pa.Table, golden: GoldenTable) -> None:
        """Lay them out.

        Args:
            table: rows of `history.parquet`, with `COLUMNS`; those of the warm-up are left out.
        """
        load = table.filter(pc.equal(table["phase"], "load"))
        self._columns = {name: _one(load[name]) for name in load.column_names}
        self.count: int = load.num_rows
        ranks = pc.index_in(self.column("prompt_id"), value_set=pa.array(golden.names, pa.string()))
        self.rank_or_null: pa.Array = ranks
        self.rank_R = ints_of(pc.fill_null(ranks, -1))
        self.outcome_R = ints_of(
            pc.index_in(self.column("outcome"), value_set=pa.array(OUTCOMES, pa.string()))
        )
        self.honest_R = mask_of(pc.equal(self.column("malformed"), ""))
        self.degraded_R = ints_of(pc.list_value_length(self.column("degraded"))) > 0
        self.t_end_ns_R = self.ints("t_end_ns")
        offsets = ints_of(self.column("chunk_token").offsets)
        self.start_R, self.length_R = offsets[:-1] - offsets[0], np.diff(offsets)
        self.row_N = np.repeat(np.arange(self.count), self.length_R)
        self.place_N = np.arange(len(self.row_N)) - self.start_R[self.row_N]
        self.token_N = ints_of(self.column("chunk_token").flatten())
        self.index_N = ints_of(self.column("chunk_index").flatten())

    def column(self, name: str) -> pa.Array:
        """A column of R values or lists."""
        return self._columns[name]

    def ints(self, name: str) -> Ints:
        """A column of integers."""
        return ints_of(self._columns[name])

    def id_of(self, row: int) -> str:
        """Request id of a row."""
        return self.text_of("request_id", row)

    def text_of(self, name: str, row: int) -> str:
        """A text field of a row."""
        return str(self._columns[name][row].as_py())

    def tokens_of(self, tokens: Tokens, row: int) -> tuple[int, ...]:
        """The tokens of one row."""
        begin, end = np.searchsorted(tokens.row_N, [row, row + 1])
        return tuple(tokens.token_N[begin:end].tolist())

    @cached_property
    def out_of_order(self) -> Mask:
        """Rows in which an index is not the place at which it arrived."""
        return self._any(self.index_N != self.place_N)

    @cached_property
    def arrived(self) -> Tokens:
        """In the order of arrival."""
        return Tokens(self.row_N, self.place_N, self.token_N, self.length_R)

    @cached_property
    def by_index(self) -> Tokens:
        """In the order of their index; of those with one index the last to arrive."""
        loose = self.out_of_order[self.row_N]
        if not loose.any():
            return self.arrived
        order = np.lexsort((self.place_N, self.index_N, self.row_N))
        row, index = self.row_N[order], self.index_N[order]
        last = np.ones(len(order), np.bool_)
        last[:-1] = (row[1:] != row[:-1]) | (index[1:] != index[:-1])
        row, token = row[last], self.token_N[order][last]
        length = np.bincount(row, minlength=self.count).astype(np.int64)
        place = np.arange(len(row)) - (np.cumsum(length) - length)[row]
        return Tokens(row, place, token, length)

    @cached_property
    def repeated(self) -> Mask:
        """Rows in which an index arrived twice."""
        return self.by_index.length_R < self.length_R

    @cached_property
    def after_end(self) -> Mask:
        """Rows whose last token arrived after their end."""
        last = np.zeros(self.count, np.int64)
        some = self.length_R > 0
        times = ints_of(self.column("chunk_t_ns").flatten())
        last[some] = times[(self.start_R + self.length_R - 1)[some]]
        late: Mask = some & (self.t_end_ns_R != 0) & (last > self.t_end_ns_R)
        return late

    @cached_property
    def joined(self) -> pa.Array:
        """Text of the tokens of each row."""
        return pc.binary_join(self.column("chunk_text"), "")

    @cached_property
    def text(self) -> pa.Array:
        """Text of each answer; where it has none, that of its tokens."""
        text = self.column("text")
        return pc.if_else(pc.equal(text, ""), self.joined, text)

    @cached_property
    def parts_differ(self) -> Mask:
        """Streamed rows whose parts do not add up to their text."""
        text = self.column("text")
        streamed = pc.and_(self.column("stream"), pc.not_equal(text, ""))
        return mask_of(pc.and_(streamed, pc.not_equal(text, self.joined)))

    def _any(self, mask_N: Mask) -> Mask:
        found = np.zeros(self.count, np.bool_)
        found[self.row_N[mask_N]] = True
        return found


def _one(column: pa.ChunkedArray) -> pa.Array:
    """A column as one array."""
    if column.num_chunks == 1:
        return column.chunk(0)
    return column.combine_chunks() if column.num_chunks else pa.array([], column.type)


def ints_of(column: pa.Array) -> Ints:
    """An array of integers."""
    return np.asarray(column.to_numpy(zero_copy_only=False), np.int64)


def mask_of(column: pa.Array) -> Mask:
    """An array of truths."""
    return np.asarray(column.to_numpy(zero_copy_only=False), np.bool_)
