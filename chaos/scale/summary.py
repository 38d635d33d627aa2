"""The check of requests of which only 56 bytes are left: by checksum, counts and suspicions."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tocsin.chaos.scale import rows
from tocsin.chaos.scale.golden import Knowledge
from tocsin.chaos.scale.lifecycle import OK, judge_endings
from tocsin.chaos.scale.rows import NONE, OTHER, name_of
from tocsin.chaos.scale.tally import CANARY, DUPLICATE, GOLDEN, STREAM, Mask, Tallies

NO_TOKENS = "requests look wrong, and their tokens are not in the history"
NO_GOLDEN = "requests have prompts without golden answer"


@dataclass(frozen=True, slots=True)
class Rows:
    """R requests of `requests.parquet`: a column each, as in `rows.ROW`."""

    columns: dict[str, NDArray[Any]]

    def __len__(self) -> int:
        """R."""
        return len(self.columns["request"])

    def __getitem__(self, name: str) -> NDArray[Any]:
        """One column."""
        return self.columns[name]

    def of(self, mask: Mask) -> "Rows":
        """The rows of a mask."""
        return Rows({name: column[mask] for name, column in self.columns.items()})

    def has(self, flag: int) -> Mask:
        """Rows that have one of these flags."""
        found: Mask = (self["flags"] & np.uint16(flag)) != 0
        return found

    def name(self, row: int) -> str:
        """Request id of a row."""
        return name_of(int(self["request"][row]))


def judge_row_endings(tally: Tallies, table: Rows, known: Knowledge) -> None:
    """The properties of endings, which 56 bytes decide for every request."""
    judge_endings(
        tally,
        table["outcome"].astype(np.int64),
        table["terminals"].astype(np.int64),
        table["finish"] != 0,
        table["t_end_ns"],
        known.aborted_ns,
        table.name,
    )


def judge_rows(tally: Tallies, table: Rows, known: Knowledge) -> None:
    """The properties of tokens, for requests whose tokens nobody has any more.

    A clean request is told by the checksum of its tokens, which was taken as they arrived and is
    compared here with that of as many golden ones. What only the tokens could tell is unknown.
    """
    honest = table.of(~table.has(rows.MALFORMED))
    received = table.of(table["token_count"] > 0)
    tally[DUPLICATE].checked += len(received)
    tally[DUPLICATE].missing(NO_TOKENS, int(np.count_nonzero(received.has(rows.INDEX))))
    with_golden = honest["prompt"] != NONE
    _judge_unknown(tally, honest.of(~with_golden), known)
    table = honest.of(with_golden)
    look = _Look(table, known)
    _judge_golden(tally, table, known, look)
    _judge_stream(tally, table, known, look)
    some = (table["token_count"] > 0) | table.has(rows.HAS_TEXT)
    tally[CANARY].checked += int(np.count_nonzero(some))
    tally[CANARY].missing(
        NO_TOKENS, int(np.count_nonzero(some & (table.has(rows.TEXT) | ~look.prefix)))
    )


class _Look:
    """Requests next to their golden answers.

    Attributes:
        prefix: tokens are a beginning of the golden ones; equal: all of them.
        margin: golden margin at the first divergence, NaN where there is none or it is not known.
    """

    def __init__(self, table: Rows, known: Knowledge) -> None:
        golden = known.golden
        rank = table["prompt"].astype(np.int64)
        count = table["token_count"].astype(np.int64)
        start, length = golden.start_P[rank], golden.length_P[rank]
        same = table["tokens_crc"] == golden.crc[start + rank + np.minimum(count, length)]
        self.rank = rank
        self.prefix: Mask = same & (count <= length) & (table["first_divergence"] == NONE)
        self.equal: Mask = self.prefix & (count == length)
        first = table["first_divergence"].astype(np.int64)
        inside = first < length
        self.margin = np.full(len(rank), np.nan)
        self.margin[inside] = golden.margins_N[(start + first)[inside]]


def _judge_golden(tally: Tallies, table: Rows, known: Knowledge, look: _Look) -> None:
    done = table["outcome"] == OK
    tally[GOLDEN].checked += int(np.count_nonzero(done))
    finish = table["finish"]
    as_golden = (finish == 0) | ((finish == known.golden.finish_P[look.rank]) & (finish != OTHER))
    wrong = done & ~(look.equal & as_golden)
    lenient = table.has(rows.DEGRADED) | (not known.exact)
    open_ = wrong & (
        table.has(rows.INDEX)
        | (lenient & (look.margin <= known.tau))
        | (look.equal & (finish == OTHER))
    )
    tally[GOLDEN].add(wrong & ~open_, _say(table, "the tokens or the ending are not golden"))
    tally[GOLDEN].missing(NO_TOKENS, int(np.count_nonzero(open_)))


def _judge_stream(tally: Tallies, table: Rows, known: Knowledge, look: _Look) -> None:
    some = table["token_count"] > 0
    done = table["outcome"] == OK
    tally[STREAM].checked += int(np.count_nonzero(some))
    lenient = table.has(rows.DEGRADED) | (not known.exact)
    passed = look.prefix | (lenient & (look.margin <= known.tau))
    wrong = some & (table.has(rows.INDEX | rows.AFTER_END) | (done & table.has(rows.USAGE)))
    wrong |= some & ~done & ~passed
    tally[STREAM].add(wrong, _say(table, "the stream is not the beginning of one answer"))
    open_ = some & ~wrong & done & table.has(rows.PARTS)
    tally[STREAM].missing(NO_TOKENS, int(np.count_nonzero(open_)))


def _judge_unknown(tally: Tallies, table: Rows, known: Knowledge) -> None:
    """Requests without golden answer: the stream alone can be judged."""
    some = table["token_count"] > 0
    done = int(np.count_nonzero(table["outcome"] == OK))
    tally[GOLDEN].missing(NO_GOLDEN, done)
    tally[STREAM].checked += int(np.count_nonzero(some))
    tally[CANARY].checked += int(np.count_nonzero(some | table.has(rows.HAS_TEXT)))
    tally[STREAM].missing(NO_TOKENS, int(np.count_nonzero(some)))
    tally[CANARY].missing(NO_TOKENS, int(np.count_nonzero(some | table.has(rows.HAS_TEXT))))


def _say(table: Rows, what: str) -> Callable[[int], tuple[str, str]]:
    return lambda row: (table.name(row), what)
