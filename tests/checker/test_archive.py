"""The journal's folder stays small, and nothing goes before the archive has given it back."""

import gzip
import hashlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch

from tocsin.checker.journal import Journal, JournalSettings, find_record, records_in
from tocsin.checker.journal.archive import Archive, mark_of
from tocsin.checker.journal.files import snapshots_folder, stamp
from tocsin.checker.journal.sweep import Swept, size_of, sweep
from tocsin.checker.snapshot import load_call, save_call
from tocsin.core.calls import LinearCall
from tocsin.core.clock import ManualClock
from tocsin.core.errors import EnvironmentFault
from tocsin.core.ids import new_ulid

DAY_S = 86_400.0
START_S = 1_800_000_000.0


@pytest.fixture
def memory() -> Iterator[Any]:
    """fsspec's file system in memory, empty."""
    files = fsspec.filesystem("memory")
    files.store.clear()
    files.pseudo_dirs[:] = [""]
    yield files
    files.store.clear()


class Node:
    """A journal folder whose time is turned by hand."""

    def __init__(self, folder: Path, **chosen: Any) -> None:
        self.folder = folder
        self.clock = ManualClock(ns=int(START_S * 1e9))
        self.settings = JournalSettings(**{"rotate_bytes": 400, **chosen})
        self.journal = Journal(
            folder / "failures-r1.jsonl", settings=self.settings, clock=self.clock
        )
        self._number = 0

    def fail(self, count: int = 1) -> str:
        """So many failures, a second apart; the last one's id."""
        failure_id = ""
        for _ in range(count):
            self.clock.sleep(1)
            self._number += 1
            failure_id = new_ulid(int(self.clock.wall_s() * 1000), self._number.to_bytes(10, "big"))
            record = {
                "ts": stamp(self.clock.wall_s()),
                "failure_id": failure_id,
                "operator": "rope",
            }
            self.journal.write({**record, "row": "failure", "filler": "x" * 120})
        return failure_id

    def snapshot(self, size: int = 16) -> str:
        failure_id = self.fail()
        call = LinearCall(x=torch.ones(1, size), weight=torch.ones(4, size))
        save_call(call, snapshots_folder(self.folder) / failure_id, {"failure_id": failure_id})
        return failure_id

    def sweep(self, after_s: float = 0.0) -> Swept:
        self.clock.sleep(after_s)
        swept = self.journal.sweep(self.clock.wall_s())
        assert swept is not None
        return swept

    def packed(self) -> list[Path]:
        return sorted(self.folder.glob("*.jsonl.gz"))


@pytest.mark.parametrize("url", ["memory://bucket/journal", "file://"])
def test_finished_files_and_snapshots_go_there_and_come_back(
    url: str, tmp_path: Path, memory: Any
) -> None:
    """Proves that copies are byte for byte, marked on both sides, and local ones stay a week."""
    url = url if url.startswith("memory") else f"file://{tmp_path}/far"
    node = Node(tmp_path / "journal", archive_url=url)
    failure_id = node.snapshot()
    node.fail(9)
    swept = node.sweep()
    assert swept.failures == 0
    assert swept.archived == len(node.packed()) + 1 >= 4
    assert swept.lag_s == 0.0
    files, root = fsspec.core.url_to_fs(url)
    old = node.packed()
    for local in old:
        there = files.cat_file(f"{root}/{local.name}")
        assert there == local.read_bytes()
        said = files.cat_file(f"{root}/{local.name}.sha256").decode()
        assert said == f"{hashlib.sha256(there).hexdigest()}  {local.name}\n"
        note = json.loads(mark_of(local).read_text())
        assert note["sha256"] == {local.name: hashlib.sha256(there).hexdigest()}
    stored = snapshots_folder(node.folder) / failure_id
    for name in ("call.json", "call.safetensors"):
        there = files.cat_file(f"{root}/snapshots/{failure_id}/{name}")
        assert there == (stored / name).read_bytes()
    assert node.sweep(6 * DAY_S).dropped == 0
    assert isinstance(load_call(stored), LinearCall)
    dropped = node.sweep(1.1 * DAY_S).dropped
    assert dropped == len(old) + 1
    assert not any(local.exists() or mark_of(local).exists() for local in old)
    assert not stored.exists()
    assert files.exists(f"{root}/snapshots/{failure_id}/call.json")


def test_nothing_goes_before_the_archive_gives_it_back(tmp_path: Path, memory: Any) -> None:
    """Proves the read-back before a delete: a copy that was spoilt later is made anew."""
    node = Node(tmp_path / "journal", archive_url="memory://bucket")
    node.fail(6)
    node.sweep()
    first = node.packed()[0]
    whole = first.read_bytes()
    memory.pipe_file(f"/bucket/{first.name}", b"spoilt")
    assert node.sweep(8 * DAY_S).dropped >= 2
    assert memory.cat_file(f"/bucket/{first.name}") == whole


def test_a_store_that_stores_something_else_is_not_believed(
    tmp_path: Path, memory: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Proves that a copy which reads back differently is a failure, and the local file is kept."""
    node = Node(tmp_path / "journal", archive_url="memory://bucket")
    node.fail(6)

    def put(self: Any, local: str, path: str, **_: Any) -> None:
        self.pipe_file(path, Path(local).read_bytes()[:-1])

    monkeypatch.setattr(type(memory), "put_file", put)
    swept = node.sweep()
    assert swept.archived == 0
    assert swept.failures == len(node.packed()) > 0
    assert "reads back with SHA-256" in caplog.text
    kept = len(node.packed())
    swept = node.sweep(30 * DAY_S)
    assert swept.dropped == 0
    assert len(node.packed()) >= kept
    assert node.journal.counters.archive_failures >= 2 * kept
    assert node.journal.counters.archive_lag_s > 29 * DAY_S


def test_an_archive_that_is_out_of_reach_is_counted_and_tried_again(
    tmp_path: Path, memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proves that an outage costs nothing: the lag grows, and the backlog goes afterwards."""
    node = Node(tmp_path / "journal", archive_url="memory://bucket")
    node.fail(6)
    with monkeypatch.context() as outage:

        def put(*args: Any, **kwargs: Any) -> None:
            raise ConnectionError("the store does not answer")

        outage.setattr(type(memory), "put_file", put)
        assert node.sweep().failures > 0
        assert node.sweep(3600).lag_s >= 3600
    swept = node.sweep()
    assert swept.failures == 0
    assert swept.lag_s == 0.0
    assert node.journal.counters.archive_lag_s == 0.0


def test_a_url_without_its_package_says_what_to_do(tmp_path: Path) -> None:
    """Proves the words for a scheme that nobody knows."""
    archive = Archive("nosuch://bucket")
    file = tmp_path / "a"
    file.write_text("a")
    with pytest.raises(EnvironmentFault, match="install the package that it names, or correct"):
        archive.put(file, "a")


def test_without_an_archive_files_go_after_a_week(tmp_path: Path) -> None:
    """Proves the retention where nobody wants copies."""
    node = Node(tmp_path / "journal")
    node.snapshot()
    node.fail(5)
    node.sweep()
    old = node.packed()
    assert node.sweep(6.9 * DAY_S).dropped == 0
    assert node.sweep(0.2 * DAY_S).dropped == len(old) + 1 >= 3
    assert not any(local.exists() for local in old)
    assert node.journal.counters.journal_lost == 0


def test_over_the_cap_what_has_a_copy_goes_first(tmp_path: Path, memory: Any) -> None:
    """Proves the order: oldest archived, and only then the oldest of the rest, counted."""
    node = Node(tmp_path / "journal", archive_url="memory://bucket")
    node.fail(12)
    node.sweep()
    archived = node.packed()
    mark_of(archived[0]).unlink()  # the oldest has no copy
    memory.store.clear()
    room = size_of(node.folder) - 2 * archived[1].stat().st_size
    tight = node.settings.model_copy(update={"disk_bytes_max": room, "archive_url": ""})
    swept = sweep(node.folder, node.clock.wall_s(), tight, None)
    assert swept is not None
    assert swept.lost == 0
    assert swept.dropped >= 1
    assert archived[0].exists()
    assert not archived[1].exists()
    assert swept.bytes <= room
    none = node.settings.model_copy(update={"disk_bytes_max": 1, "archive_url": ""})
    swept = sweep(node.folder, node.clock.wall_s(), none, None)
    assert swept is not None
    assert swept.lost == 1
    assert not node.packed()


def test_what_the_cap_takes_without_a_copy_is_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Proves that lost evidence is in a counter and in the log, with what to do."""
    node = Node(tmp_path / "journal", disk_bytes_max=2000)
    for _ in range(4):
        node.snapshot(size=256)
    swept = node.sweep()
    assert swept.lost >= 2
    assert node.journal.counters.journal_lost == swept.lost
    assert swept.bytes <= 2000 + 400 + 5000  # one snapshot may be all that fits
    assert "set archive_url or raise disk_bytes_max" in caplog.text


def test_files_of_the_dead_are_finished_and_those_of_the_living_are_not(tmp_path: Path) -> None:
    """Proves that a replica which was killed leaves no file for ever, and no other is touched."""
    folder = tmp_path / "journal"
    now_s = time.time()
    living = Journal(folder / "failures-living.jsonl")
    living.write({"failure_id": "L", "operator": "rope"})
    (folder / "failures-dead.jsonl").write_bytes(b'{"failure_id": "D"}\n{"failure_id": "torn')
    for path in folder.glob("*.jsonl"):
        os.utime(path, (now_s - 7200, now_s - 7200))
    fresh = folder / "failures-fresh.jsonl"
    fresh.write_bytes(b'{"failure_id": "F"}\n')
    assert sweep(folder, now_s, JournalSettings()) is not None
    assert (folder / "failures-living.jsonl").exists()
    assert fresh.exists()
    assert not (folder / "failures-dead.jsonl").exists()
    (packed,) = folder.glob("failures-dead.*.gz")
    assert gzip.decompress(packed.read_bytes()).startswith(b'{"failure_id": "D"}')
    assert {one["failure_id"] for one in records_in(folder)} == {"L", "F", "D"}
    living.close()


def test_one_process_of_a_node_sweeps_at_a_time(tmp_path: Path) -> None:
    """Proves that replicas share a folder without treading on each other."""
    import fcntl

    node = Node(tmp_path / "journal")
    node.fail(4)
    fd = os.open(node.folder / ".sweep.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX)
    assert node.journal.sweep(node.clock.wall_s()) is None
    assert not node.packed()
    os.close(fd)
    node.sweep()
    assert node.packed()


def test_leftovers_of_a_kill_are_cleared(tmp_path: Path) -> None:
    """Proves that half a compression and half a snapshot go, and a living writer's stays."""
    node = Node(tmp_path / "journal")
    node.fail(4)
    finished = next(node.folder.glob("failures-r1.*.jsonl"))
    (node.folder / f"{finished.name}.gz.part").write_bytes(b"half")
    snapshots = snapshots_folder(node.folder)
    (snapshots / f".01ABC.{2**22 + 1}.part").mkdir(parents=True)
    (snapshots / f".01ABC.{os.getpid()}.part").mkdir()
    node.sweep()
    assert [one.name for one in snapshots.iterdir()] == [f".01ABC.{os.getpid()}.part"]
    assert not list(node.folder.glob("*.part"))
    assert list(records_in(node.folder))


def test_records_are_found_wherever_they_are(tmp_path: Path) -> None:
    """Proves that a search goes through newest, finished and compressed files alike."""
    node = Node(tmp_path / "journal")
    ids = [node.fail() for _ in range(4)]
    node.sweep()
    ids += [node.fail() for _ in range(5)]
    assert node.packed()
    assert list(node.folder.glob("failures-r1.2*.jsonl"))
    assert all(find_record(node.folder, one) is not None for one in ids)
    assert [one["failure_id"] for one in records_in(node.folder)] == ids[::-1]


def test_a_disk_that_is_full_stops_no_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Proves that what cannot be compressed stays readable and is tried again."""
    node = Node(tmp_path / "journal")
    node.fail(5)
    with monkeypatch.context() as full:

        def refuse(*args: Any, **kwargs: Any) -> Any:
            raise OSError(28, "No space left on device")

        full.setattr("tocsin.checker.journal.sweep.gzip.open", refuse)
        node.sweep()
    assert "could not be compressed" in caplog.text
    assert not node.packed()
    assert len(list(records_in(node.folder))) == 5
    node.sweep()
    assert node.packed()


def test_the_thread_sweeps_by_itself(tmp_path: Path) -> None:
    """Proves that the tick does what the time asks for, and no more."""
    node = Node(tmp_path / "journal", sweep_every_s=60)
    node.fail(5)
    node.journal._tick()
    assert not node.packed()
    node.clock.sleep(60)
    node.journal._tick()
    assert node.packed()
