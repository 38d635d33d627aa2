"""What replicas of other hosts left on disk comes into the run: the newest, and no more."""

import io
import os
import tarfile
import time
from pathlib import Path

import pytest

from tocsin.ray_jobs.fetch import packed, unpack
from tocsin.ray_jobs.places import node_folder


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A node folder with files of this run, of an earlier one, and of other kinds."""
    root = node_folder(tmp_path / "node")
    now_s = time.time()
    for name, age_s, size in [
        ("journal/failures-a.jsonl", 5, 10),
        ("journal/snapshots/F1/call.npz", 4, 400),
        ("journal/snapshots/.half/call.npz", 4, 10),
        ("journal/failures-old.jsonl", 500, 10),
        ("spans/worker-7.jsonl", 1, 20),
        ("metrics/worker-7.bin", 1, 20),
    ]:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)
        os.utime(path, (now_s - age_s, now_s - age_s))
    return root


def _files(root: Path) -> set[str]:
    return {str(one.relative_to(root)) for one in root.rglob("*") if one.is_file()}


def test_journals_snapshots_and_spans_of_the_run_travel(node: Path, tmp_path: Path) -> None:
    """Not what was there before, not a snapshot that is being written, not the counters."""
    told = packed(60.0, folder=node)
    state = tmp_path / "state"
    assert unpack(told["tar"], state) == 3
    assert told["left_out"] == 0
    assert _files(state) == {
        "journal/failures-a.jsonl",
        "journal/snapshots/F1/call.npz",
        "spans/worker-7.jsonl",
    }


def test_what_is_too_large_is_counted_and_does_not_travel(node: Path, tmp_path: Path) -> None:
    """Small files behind a large one still come."""
    told = packed(60.0, bytes_max=100, folder=node)
    assert told["left_out"] == 1
    assert unpack(told["tar"], tmp_path / "state") == 2


def test_nothing_leaves_the_folder_it_is_unpacked_into(tmp_path: Path) -> None:
    """A node that was taken over must not write elsewhere in the driver's pod."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        entry = tarfile.TarInfo("../outside")
        entry.size = 1
        tar.addfile(entry, io.BytesIO(b"x"))
    with pytest.raises(tarfile.TarError):
        unpack(out.getvalue(), tmp_path / "state")
    assert not (tmp_path / "outside").exists()
