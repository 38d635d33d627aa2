"""An append-only table: a folder of Parquet files, each written whole, and an index of them.

The folder is what Spark and Dask write, too: `pyarrow.parquet.read_table` reads it as one table and
passes over names that begin with `_` or `.`, which the index and unfinished files have.
"""

import json
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

INDEX_SUFFIX = ".jsonl"
_BLOCK = 1 << 20


class TableWriter:
    """Appends chunks; a crash at any byte costs at most the chunk being written.

    A chunk is one Parquet file with one row group a shard. It is written under a hidden name,
    flushed to the disk, given its name, and only then told to the index, a line a chunk.
    """

    def __init__(self, path: Path, schema: pa.Schema, *, writer: str = "0") -> None:
        """Open a table for appending.

        Args:
            path: the folder; made if it is not there.
            writer: name of this writer; each process that appends at the same time has its own.
        """
        self.path, self.schema, self.writer = path, schema, writer
        path.mkdir(parents=True, exist_ok=True)
        self.chunks = self.rows = 0
        index = path / f"_{writer}{INDEX_SUFFIX}"
        self._index: IO[bytes] = index.open("xb")

    def append(self, groups: Sequence[pa.Table]) -> None:
        """Write a chunk of one row group a table, in their order; empty ones, too."""
        name = f"{self.writer}-{self.chunks:06d}.parquet"
        part = self.path / f".{name}"
        with pq.ParquetWriter(part, self.schema, compression="zstd") as out:
            for group in groups:
                out.write_table(group, row_group_size=max(1, group.num_rows))
        crc, size = _seal(part)
        os.replace(part, self.path / name)
        _sync_folder(self.path)
        rows = sum(group.num_rows for group in groups)
        self.chunks += 1
        self.rows += rows
        self._tell({"chunk": name, "rows": rows, "bytes": size, "crc32": crc})

    def close(self) -> None:
        """Tell the index that nothing more follows."""
        if not self._index.closed:
            self._tell({"closed": True, "chunks": self.chunks, "rows": self.rows})
            self._index.close()

    def abandon(self) -> None:
        """Let go of it without saying that nothing follows."""
        self._index.close()

    def __enter__(self) -> "TableWriter":
        """The writer itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close; after an error leave the index open-ended, as a crash would."""
        if kind is None:
            self.close()
        else:
            self.abandon()

    def _tell(self, line: dict[str, Any]) -> None:
        self._index.write(json.dumps(line).encode() + b"\n")
        self._index.flush()
        os.fsync(self._index.fileno())


def checksum(path: Path) -> int:
    """CRC-32 of a file."""
    crc = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            crc = zlib.crc32(block, crc)
    return crc


def _seal(path: Path) -> tuple[int, int]:
    """Flush a file to the disk; its checksum and its size in bytes."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return checksum(path), path.stat().st_size


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
