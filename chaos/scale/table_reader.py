"""Reading a table that may have been cut off: every whole chunk, and what is missing."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from tocsin.chaos.scale.table import INDEX_SUFFIX, checksum
from tocsin.core.errors import SpecError


@dataclass(frozen=True, slots=True)
class Loss:
    """A piece of a table that is not there any more.

    Attributes:
        rows: how many rows it had, None where nothing says so.
    """

    path: Path
    why: str
    rows: int | None

    def __str__(self) -> str:
        """One line: where, what, how much."""
        rows = "an unknown number of" if self.rows is None else f"{self.rows:,}"
        return f"{self.path.parent.name}/{self.path.name}: {self.why}; {rows} rows are lost"


@dataclass(frozen=True, slots=True)
class Chunk:
    """A whole chunk."""

    path: Path
    rows: int
    groups: int

    def read(self, group: int, columns: list[str] | None = None) -> pa.Table:
        """One row group, some or all of its columns."""
        with pq.ParquetFile(self.path) as file:
            return file.read_row_group(group, columns=columns, use_threads=False)


@dataclass(frozen=True, slots=True)
class Table:
    """What can be read of a table.

    Attributes:
        chunks: by writer, then as they were written.
        lost: what was begun or told to the index and cannot be read.
        closed: every writer said that nothing more follows.
        schema: None where there is no chunk.
    """

    path: Path
    chunks: tuple[Chunk, ...]
    lost: tuple[Loss, ...]
    closed: bool
    schema: pa.Schema | None

    @property
    def rows(self) -> int:
        """Rows that can be read."""
        return sum(chunk.rows for chunk in self.chunks)

    @property
    def groups(self) -> int:
        """Row groups of a chunk: the number of shards."""
        return max((chunk.groups for chunk in self.chunks), default=0)


def open_table(path: Path, *, thorough: bool = False) -> Table:
    """Look through a table's folder, or at a single Parquet file.

    Args:
        thorough: compare checksums, too, not only sizes and footers.

    Raises:
        SpecError: there is nothing of that name.
    """
    if not path.exists():
        raise SpecError(f"{path}: is not there, expected a table; name a folder of a run")
    told, closed = _index(path)
    found = [path] if path.is_file() else path.glob("[!._]*.parquet")
    chunks: list[Chunk] = []
    lost: list[Loss] = []
    schema = None
    for name in sorted({*told, *(one.name for one in found)}):
        one = path if path.is_file() else path / name
        line = told.get(name)
        reason = _torn(one, line, thorough=thorough)
        try:
            footer = pq.read_metadata(one) if not reason else None
        except (pa.ArrowInvalid, OSError) as error:
            footer, reason = None, f"has no footer ({str(error).partition('.')[0]})"
        if footer is None:
            lost.append(Loss(one, reason, line["rows"] if line else None))
            continue
        chunks.append(Chunk(one, footer.num_rows, footer.num_row_groups))
        schema = schema or footer.schema.to_arrow_schema()
    if path.is_dir():
        for part in sorted(path.glob(".*.parquet")):
            lost.append(Loss(part, "was being written", None))
    return Table(path, tuple(chunks), tuple(lost), closed or path.is_file(), schema)


def hide_torn(table: Table) -> None:
    """Hide what cannot be read, so that every reader of Parquet folders reads the rest."""
    for loss in table.lost:
        if loss.path.exists() and not loss.path.name.startswith("."):
            loss.path.rename(loss.path.with_name(f"_torn-{loss.path.name}"))


def _torn(path: Path, line: dict[str, Any] | None, *, thorough: bool) -> str:
    """Why a chunk is not what the index says; empty when it is, or when the index is silent."""
    if not path.exists():
        return "is not there, the index has it"
    size = path.stat().st_size
    if line is not None and size != line["bytes"]:
        return f"has {size:,} bytes, the index says {line['bytes']:,}"
    if line is not None and thorough and checksum(path) != line["crc32"]:
        return "has another checksum than the index says"
    return ""


def _index(path: Path) -> tuple[dict[str, dict[str, Any]], bool]:
    """Index lines by chunk name, and whether every writer closed; a torn line says nothing."""
    told: dict[str, dict[str, Any]] = {}
    indexes = sorted(path.glob(f"_*{INDEX_SUFFIX}")) if path.is_dir() else []
    closed = bool(indexes)
    for index in indexes:
        last: dict[str, Any] = {}
        for text in index.read_bytes().splitlines():
            try:
                last = json.loads(text)
            except ValueError:
                last = {}
                continue
            if "chunk" in last:
                told[last["chunk"]] = last
        closed = closed and bool(last.get("closed"))
    return told, closed
