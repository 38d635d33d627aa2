"""One shard of a history: the same row group of every chunk, judged with bounded memory."""

import resource
import time
import zlib
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from tocsin.chaos.scale import rows
from tocsin.chaos.scale.golden import Knowledge
from tocsin.chaos.scale.lifecycle import judge_repeated
from tocsin.chaos.scale.recorder import HISTORY, REQUESTS, row_schema
from tocsin.chaos.scale.rows import OUTCOMES, Keys
from tocsin.chaos.scale.summary import Rows, judge_row_endings, judge_rows
from tocsin.chaos.scale.table_reader import Chunk, Table, open_table
from tocsin.chaos.scale.tally import PROPERTIES, Tallies, tallies
from tocsin.chaos.scale.tokens import Judge
from tocsin.chaos.scale.whole import COLUMNS, Whole
from tocsin.core.errors import SpecError

DISAGREE = "whole requests are not what their 56 bytes say"
TOKEN_PROPERTIES = tuple(name for name in PROPERTIES if not name.startswith("lifecycle."))


@dataclass(slots=True)
class ShardResult:
    """What a shard comes to.

    Attributes:
        whole: requests judged by their tokens.
        cpu_s, rss_mb_max: of the process, so far.
    """

    shard: int
    requests: int = 0
    tokens: int = 0
    whole: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    tally: Tallies = field(default_factory=tallies)
    cpu_s: float = 0.0
    rss_mb_max: int = 0


@dataclass(frozen=True, slots=True)
class Run:
    """A run folder, opened for judging.

    Attributes:
        requests: None for a run of which every request is in the history whole.
    """

    folder: Path
    judge: Judge
    requests: Table | None
    history: Table

    @property
    def shards(self) -> int:
        """Number of shards."""
        return max(self.history.groups, self.requests.groups if self.requests else 0)


@lru_cache(maxsize=2)
def open_run(folder: Path) -> Run:
    """Open a run folder; once a process.

    Raises:
        SpecError: it is no run, or its 56 bytes are laid out or ranked otherwise.
    """
    known = Knowledge.of(folder)
    path = folder / REQUESTS
    requests = open_table(path) if path.exists() else None
    if requests is not None and requests.schema is not None:
        wanted = row_schema(known.golden)
        if not requests.schema.equals(wanted, check_metadata=True):
            raise SpecError(
                f"{path}: is laid out for {requests.schema.metadata}, expected "
                f"{wanted.metadata}; was the manifest exchanged, or is another version needed?"
            )
    return Run(folder, Judge(known), requests, open_table(folder / HISTORY))


def judge_shard(folder: Path, shard: int) -> ShardResult:
    """Judge one shard of a run folder."""
    began_s = time.process_time()
    run = open_run(folder)
    result = ShardResult(shard)
    keys: list[Keys] = []
    if run.requests is None:
        for chunk in run.history.chunks:
            if shard < chunk.groups:
                _judge_whole_group(run, chunk, result, keys)
    else:
        kept = {chunk.path.name: chunk for chunk in run.history.chunks}
        for chunk in run.requests.chunks:
            _judge_group(run, chunk, kept.get(chunk.path.name), result, keys)
    judge_repeated(result.tally, keys)
    result.cpu_s = time.process_time() - began_s
    result.rss_mb_max = rss_mb_max()
    return result


def rss_mb_max() -> int:
    """Most memory that this process has held, in MiB.

    Not `ru_maxrss`: a process that was just started has that of its parent.
    """
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    found = [line.split() for line in lines if line.startswith("VmHWM:")]
    if found:
        return int(found[0][1]) // 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def _judge_group(
    run: Run, chunk: Chunk, kept: Chunk | None, result: ShardResult, keys: list[Keys]
) -> None:
    """Requests of one chunk: those kept whole by their tokens, the others by their 56 bytes."""
    known = run.judge.known
    table = _rows(chunk.read(result.shard))
    result.requests += len(table)
    result.tokens += int(table["token_count"].sum())
    counts = np.bincount(table["outcome"], minlength=len(OUTCOMES))
    result.outcomes.update(dict(zip(OUTCOMES, counts.tolist(), strict=True)))
    keys.append(table["request"])
    judge_row_endings(result.tally, table, known)
    is_kept = table.has(rows.KEPT)
    if kept is None:
        judge_rows(result.tally, table, known)
        return
    judge_rows(result.tally, table.of(~is_kept), known)
    whole = Whole(kept.read(result.shard, COLUMNS), known.golden)
    result.whole += whole.count
    run.judge.tokens(result.tally, whole)
    disagreeing = _disagreeing(table.of(is_kept), whole)
    for name in TOKEN_PROPERTIES:
        result.tally[name].missing(DISAGREE, disagreeing)


def _judge_whole_group(run: Run, chunk: Chunk, result: ShardResult, keys: list[Keys]) -> None:
    """Requests of a history without `requests.parquet`."""
    whole = Whole(chunk.read(result.shard, COLUMNS), run.judge.known.golden)
    result.requests += whole.count
    result.whole += whole.count
    result.tokens += len(whole.token_N)
    counts = np.bincount(whole.outcome_R, minlength=len(OUTCOMES))
    result.outcomes.update(dict(zip(OUTCOMES, counts.tolist(), strict=True)))
    ids = whole.column("request_id").to_pylist()
    keys.append(np.array([rows.key_of(one) for one in ids], np.uint64))
    run.judge.endings(result.tally, whole)
    run.judge.tokens(result.tally, whole)


def _rows(table: pa.Table) -> Rows:
    return Rows({name: table[name].to_numpy() for name in table.column_names})


def _disagreeing(table: Rows, whole: Whole) -> int:
    """Number of kept requests whose tokens are not those that the 56 bytes were made of."""
    if len(table) != whole.count:
        return max(1, abs(len(table) - whole.count))
    data = memoryview(whole.token_N.astype("<u4").tobytes())
    ends = 4 * (whole.start_R + whole.length_R)
    crc = [
        zlib.crc32(data[begin:end])
        for begin, end in zip((4 * whole.start_R).tolist(), ends.tolist(), strict=True)
    ]
    same = table["tokens_crc"] == np.array(crc, np.uint32)
    same &= table["token_count"] == whole.length_R
    same &= table["t_invoke_ns"] == whole.ints("t_invoke_ns")
    return int(np.count_nonzero(~same))
