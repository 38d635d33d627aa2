"""Writes a history at scale: 56 bytes of every request, and some requests whole."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from tocsin.chaos.history_table import SCHEMA as WHOLE
from tocsin.chaos.history_table import history_table
from tocsin.chaos.scale import rows
from tocsin.chaos.scale.golden import GoldenTable, finish_code
from tocsin.chaos.scale.rows import NONE, PACK, ROW, Reservoir
from tocsin.chaos.scale.stream import StreamCheck
from tocsin.chaos.scale.table import TableWriter
from tocsin.core.history import Outcome, RequestRecord
from tocsin.core.system import GoldenAnswer

REQUESTS, HISTORY = "requests.parquet", "history.parquet"
SHARDS = 16
CHUNK_ROWS = 1 << 18
_WHOLE_MOST = 1 << 15
_STAMPS = {
    "tocsin.rows": "1",
    "tocsin.outcomes": ",".join(rows.OUTCOMES),
    "tocsin.finishes": ",".join(rows.FINISHES),
}


def row_schema(golden: GoldenTable) -> pa.Schema:
    """Schema of `requests.parquet`; its metadata says what the codes and ranks mean."""
    fields = [(name, pa.from_numpy_dtype(ROW[name])) for name in ROW.names or ()]
    return pa.schema(fields, metadata={**_STAMPS, "tocsin.prompts": golden.stamp})


class Recorder:
    """Takes each request when its client is done with it, and writes them in chunks.

    Whole requests go to `history.parquet`: all that any check could object to, and a seeded share
    of the others. A chunk is written when its rows are full; what is in memory when the process
    dies is lost, so a slow client calls `flush` from time to time.
    """

    def __init__(
        self,
        run_dir: Path,
        golden: Mapping[str, GoldenAnswer],
        *,
        seed: int,
        share: float = 0.001,
        shards: int = SHARDS,
        chunk_rows: int = CHUNK_ROWS,
        writer: str = "0",
    ) -> None:
        """Open both tables in a run's folder.

        Args:
            golden: answers by prompt id, as in the run's manifest.
            share: of the clean requests that are kept whole.
            shards: parts by hash of the request id; a check holds the keys of one in memory.
            writer: name of this client process among those of the run.
        """
        self.golden = golden
        self._table = GoldenTable(golden)
        self._reservoir = Reservoir(seed, share)
        self._shards, self._chunk_rows = shards, chunk_rows
        self._rows = bytearray()
        self._whole: list[RequestRecord] = []
        self._history = TableWriter(run_dir / HISTORY, WHOLE, writer=writer)
        self._requests = TableWriter(run_dir / REQUESTS, row_schema(self._table), writer=writer)

    def check(self, request_id: str, prompt_id: str) -> StreamCheck:
        """The online check for a request that is about to be sent."""
        drawn = rows.key_of(request_id) in self._reservoir
        return StreamCheck(self.golden.get(prompt_id), keep=drawn)

    def watch(self, record: RequestRecord) -> None:
        """Take a request that is recorded already, with its tokens."""
        check = self.check(record.request_id, record.prompt_id)
        for chunk in record.chunks:
            check.token(chunk.index, chunk.token, chunk.text, chunk.t_ns)
        self.add(record, check)

    def add(self, record: RequestRecord, check: StreamCheck) -> None:
        """Take a request that has ended for its client.

        Args:
            record: all about it; where it holds no tokens, those of the check are written.
            check: what watched its tokens.
        """
        key = rows.key_of(record.request_id)
        rank = self._table.rank_of(record.prompt_id)
        flags = check.flags | self._suspicions(record, check, rank)
        suspect = flags & rows.SUSPECT or check.first_divergence != NONE
        unjudged = rank == NONE and not record.malformed
        if suspect or unjudged or check.keep:
            flags |= rows.KEPT
            whole = bool(record.chunks) or not check.count
            self._whole.append(record if whole else replace(record, chunks=check.chunks()))
        self._rows += PACK.pack(
            key,
            record.t_invoke_ns,
            record.t_first_ns,
            record.t_end_ns,
            check.crc,
            check.count,
            check.first_divergence,
            rank,
            flags,
            min(max(record.http_status, 0), 0xFFFF),
            rows.OUTCOMES.index(record.outcome),
            finish_code(record.finish_reason),
            min(record.terminals, 255),
            min(len(record.attempts), 255),
        )
        full = len(self._rows) >= self._chunk_rows * PACK.size
        if full or len(self._whole) >= _WHOLE_MOST:
            self.flush()

    def flush(self) -> None:
        """Write what is in memory as a chunk."""
        if not self._rows:
            return
        table = np.frombuffer(bytes(self._rows), ROW)
        shards = rows.shards_of(table["request"], self._shards)
        groups: list[list[tuple[str, RequestRecord]]] = [[] for _ in range(self._shards)]
        for record in self._whole:
            key = np.array([rows.key_of(record.request_id)], np.uint64)
            groups[int(rows.shards_of(key, self._shards)[0])].append(("load", record))
        # First the whole requests: rows that say "kept" shall not outlive what was kept.
        self._history.append([history_table(group, {}) for group in groups])
        self._requests.append([self._columns(table[shards == s]) for s in range(self._shards)])
        self._rows, self._whole = bytearray(), []

    def close(self) -> None:
        """Write the rest, and say that nothing more follows."""
        self.flush()
        self._history.close()
        self._requests.close()

    def __enter__(self) -> "Recorder":
        """The recorder itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Write what there is, also after an error; only an orderly end closes the tables."""
        if kind is None:
            self.close()
            return
        self.flush()
        self._history.abandon()
        self._requests.abandon()

    def _suspicions(self, record: RequestRecord, check: StreamCheck, rank: int) -> int:
        """Flags that only the end of a request can tell."""
        flags = rows.DEGRADED if record.degraded else 0
        flags |= rows.MALFORMED if record.malformed else 0
        text = record.text
        if text:
            flags |= rows.HAS_TEXT
            if rank == NONE or not self.golden[record.prompt_id].text.startswith(text):
                flags |= rows.TEXT
        if record.t_end_ns and check.last_ns > record.t_end_ns:
            flags |= rows.AFTER_END
        if record.outcome is Outcome.OK:
            if 0 <= record.usage_tokens != check.count:
                flags |= rows.USAGE
            if record.stream and text and not check.adds_up(text):
                flags |= rows.PARTS
            if rank != NONE:
                golden = self.golden[record.prompt_id]
                as_golden = check.count == len(golden.tokens) and (
                    record.finish_reason in ("", golden.finish_reason)
                )
                flags |= 0 if as_golden else rows.ENDING
        return flags if _ends_well(record) else flags | rows.ENDING

    def _columns(self, table: np.ndarray) -> pa.Table:
        schema = self._requests.schema
        return pa.table(
            [pa.array(np.ascontiguousarray(table[name])) for name in schema.names], schema=schema
        )


def _ends_well(record: RequestRecord) -> bool:
    """Ended exactly once, and its client knows how."""
    match record.outcome:
        case Outcome.OK:
            return record.terminals == 1 and bool(record.finish_reason)
        case Outcome.FAIL:
            return record.terminals == 1
        case Outcome.CANCELLED:
            return record.terminals <= 1
        case _:
            return False
