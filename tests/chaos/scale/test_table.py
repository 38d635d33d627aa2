"""A table that is cut off anywhere loses its last chunk at most, and says so."""

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.chaos.scale.table import TableWriter
from tocsin.chaos.scale.table_reader import hide_torn, open_table
from tocsin.core.errors import SpecError

SCHEMA = pa.schema([("x", pa.int64())])
CHUNKS = 3


def rows(*values: int) -> pa.Table:
    return pa.table({"x": list(values)}, schema=SCHEMA)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three chunks of two row groups, closed."""
    path = tmp_path_factory.mktemp("table") / "t.parquet"
    with TableWriter(path, SCHEMA) as writer:
        for i in range(CHUNKS):
            writer.append([rows(2 * i, 2 * i + 1), rows()])
    return path


def test_a_closed_table_is_read_whole_by_anybody(written: Path) -> None:
    table = open_table(written, thorough=True)
    assert (table.rows, table.lost, table.closed, table.groups) == (6, (), True, 2)
    assert pq.read_table(written)["x"].to_pylist() == list(range(6))
    assert table.chunks[1].read(0)["x"].to_pylist() == [2, 3]
    assert table.chunks[1].read(1).num_rows == 0


def crashed(written: Path, folder: Path, done: int, named: bool, data: bytes, index: bytes) -> Path:
    """The folder as a crash leaves it: `done` chunks and part of what follows."""
    path = folder / "t.parquet"
    path.mkdir()
    for i in range(done):
        shutil.copy(written / f"0-{i:06d}.parquet", path)
    if done < CHUNKS and data:
        name = f"0-{done:06d}.parquet"
        (path / (name if named else f".{name}")).write_bytes(data)
    (path / "_0.jsonl").write_bytes(index)
    return path


@settings(max_examples=40, deadline=None, derandomize=True)
@given(done=st.integers(0, CHUNKS - 1), share=st.floats(0, 1), named=st.booleans())
def test_a_crash_at_any_byte_of_a_chunk_costs_that_chunk(
    done: int, share: float, named: bool, written: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    whole = (written / f"0-{done:06d}.parquet").read_bytes()
    cut = whole[: 1 + int(share * (len(whole) - 2))]
    index = b"".join((written / "_0.jsonl").read_bytes().splitlines(keepends=True)[:done])
    path = crashed(written, tmp_path_factory.mktemp("cut"), done, named, cut, index)
    table = open_table(path)
    assert table.rows == 2 * done
    assert not table.closed
    assert len(table.lost) == 1
    assert f"0-{done:06d}.parquet" in str(table.lost[0])
    hide_torn(table)
    read = pq.read_table(path)["x"].to_pylist() if done else []
    assert read == list(range(2 * done))


def test_a_crash_at_any_byte_of_the_index_costs_nothing(written: Path, tmp_path: Path) -> None:
    index = (written / "_0.jsonl").read_bytes()
    for end in range(len(index) + 1):
        (tmp_path / str(end)).mkdir()
        path = crashed(written, tmp_path / str(end), CHUNKS, True, b"", index[:end])
        table = open_table(path)
        assert (table.rows, table.lost) == (6, ())
        assert table.closed == (end >= len(index) - 1)


def test_a_chunk_cut_after_the_index_told_of_it_is_lost_with_its_number_of_rows(
    written: Path, tmp_path: Path
) -> None:
    path = shutil.copytree(written, tmp_path / "t.parquet")
    last = path / "0-000002.parquet"
    last.write_bytes(last.read_bytes()[:-1])
    (path / "0-000001.parquet").unlink()
    table = open_table(path)
    assert table.rows == 2
    assert [loss.rows for loss in table.lost] == [2, 2]
    assert "the index says" in str(table.lost[1])


def test_a_changed_byte_is_found_by_a_thorough_look(written: Path, tmp_path: Path) -> None:
    path = shutil.copytree(written, tmp_path / "t.parquet")
    last = path / "0-000002.parquet"
    data = bytearray(last.read_bytes())
    data[6] ^= 1
    last.write_bytes(data)
    assert "checksum" in str(open_table(path, thorough=True).lost[0])


def test_a_second_writer_of_one_name_is_refused(written: Path) -> None:
    with pytest.raises(FileExistsError):
        TableWriter(written, SCHEMA)


def test_a_table_that_is_not_there_is_a_line(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="is not there"):
        open_table(tmp_path / "none")
