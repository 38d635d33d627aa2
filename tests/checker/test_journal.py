"""The journal: one line a failure, valid JSON whatever the numbers, bounded, never in the way."""

import gc
import gzip
import json
import math
import os
from pathlib import Path

import pytest

from tocsin.checker.journal import (
    RING_MAX,
    Journal,
    JournalSettings,
    find_record,
    latest_record,
    plain_json,
    records_in,
)
from tocsin.checker.journal.files import stamp
from tocsin.checker.journal.plain import line_of
from tocsin.core.clock import ManualClock


def test_a_record_is_one_line_of_strict_json(tmp_path: Path) -> None:
    """Proves that NaN and infinities become text and everything stays readable."""
    path = tmp_path / "deep" / "failures.jsonl"
    journal = Journal(path)
    journal.write({"failure_id": "A", "ratios": (math.nan, math.inf, -math.inf, 1.5), "n": None})
    journal.write({"failure_id": "B", "text": "zwei\nZeilen"})
    lines = path.read_text().splitlines()
    assert len(lines) == 2
    record = json.loads(lines[0], parse_constant=lambda name: pytest.fail(name))
    assert record["ratios"] == ["NaN", "Infinity", "-Infinity", 1.5]
    assert [one["failure_id"] for one in journal.recent()] == ["A", "B"]


def test_it_rotates_by_size_and_loses_nothing(tmp_path: Path) -> None:
    """Proves the bound on a file, and that every record is still read, newest first."""
    path, clock = tmp_path / "failures.jsonl", ManualClock()
    journal = Journal(path, settings=JournalSettings(rotate_bytes=300), clock=clock)
    for number in range(40):
        clock.sleep(1)
        journal.write({"failure_id": f"F{number:02}", "filler": "x" * 60})
    assert len(list(tmp_path.glob("failures.*.jsonl"))) >= 10
    assert all(file.stat().st_size <= 300 for file in tmp_path.glob("*.jsonl"))
    found = [one["failure_id"] for one in records_in(path)]
    assert found == [f"F{number:02}" for number in reversed(range(40))]


def test_it_rotates_by_age(tmp_path: Path) -> None:
    """Proves that an hour's file is finished, by the next record and by a sweep alike."""
    path, clock = tmp_path / "failures.jsonl", ManualClock()
    journal = Journal(path, clock=clock)
    journal.write({"failure_id": "A", "ts": stamp(clock.wall_s())})
    clock.sleep(3599)
    journal.write({"failure_id": "B"})
    assert len(list(tmp_path.glob("*.jsonl"))) == 1
    clock.sleep(1)
    journal.write({"failure_id": "C"})
    assert len(list(tmp_path.glob("*.jsonl"))) == 2
    clock.sleep(3600)
    journal.sweep(clock.wall_s())
    assert not path.exists()
    assert len(list(tmp_path.glob("*.jsonl.gz"))) == 2
    assert [one["failure_id"] for one in records_in(tmp_path)] == ["C", "B", "A"]


def test_a_failure_is_found_after_a_restart(tmp_path: Path) -> None:
    """Proves that the files answer where the ring is empty, compressed ones too."""
    path, clock = tmp_path / "failures.jsonl", ManualClock()
    settings = JournalSettings(rotate_bytes=256)
    first = Journal(path, settings=settings, clock=clock)
    for number in range(12):
        clock.sleep(1)
        operator = ("rope", "linear")[number % 2]
        record = {"failure_id": f"F{number}", "filler": "x" * 40, "operator": operator}
        first.write({**record, "ts": stamp(clock.wall_s())})
    first.close()
    first.sweep(clock.wall_s())
    assert list(tmp_path.glob("*.gz"))
    again = Journal(path, settings=settings, clock=clock)
    found = again.find("F2")
    assert found is not None
    assert found["failure_id"] == "F2"
    assert again.find("F") is None
    assert again.find("G1") is None
    newest, rope = again.latest(), again.latest("rope")
    assert newest is not None
    assert newest["failure_id"] == "F11"
    assert rope is not None
    assert rope["failure_id"] == "F10"
    assert again.latest("swiglu") is None
    assert latest_record(tmp_path, "rope") == rope
    assert find_record(tmp_path, "F0") is not None


def test_a_disk_that_takes_nothing_is_counted_and_never_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Proves that a full disk does not stop serving, is said, and costs no later line."""
    journal = Journal(tmp_path / "failures.jsonl")
    room = [0, 10]

    def full(fd: int, data: bytes) -> int:
        if not room:
            return written(fd, data)
        taken = room.pop(0)
        if not taken:
            raise OSError(28, "No space left on device")
        return written(fd, data[:taken])

    written = os.write
    monkeypatch.setattr(os, "write", full)
    journal.write({"failure_id": "A"})
    journal.write({"failure_id": "B"})  # half a line
    journal.write({"failure_id": "C"})
    assert journal.counters.journal_dropped == 2
    assert journal.find("A") is not None
    assert "No space left" in caplog.text
    assert [one["failure_id"] for one in records_in(tmp_path)] == ["C"]


@pytest.mark.parametrize("packed", [False, True])
def test_a_kill_at_any_byte_leaves_a_readable_journal(tmp_path: Path, packed: bool) -> None:
    """Proves that every line before the torn one is read, and the next writer starts afresh."""
    whole = b"".join(line_of({"failure_id": f"F{n}", "text": "ä✓" * n}) for n in range(4))
    ends = [index for index, byte in enumerate(whole, start=1) if byte == 10]
    for cut in range(len(whole) + 1):
        folder = tmp_path / str(cut)
        folder.mkdir()
        path = folder / "failures.jsonl"
        path.write_bytes(whole[:cut])
        complete = [f"F{n}" for n, end in enumerate(ends) if end - 1 <= cut]
        if packed:
            final = folder / "failures.20260101T000000Z-0000.jsonl.gz"
            final.write_bytes(gzip.compress(whole[:cut])[: 40 + cut])
            path.unlink()
        if not packed:
            assert [one["failure_id"] for one in records_in(folder)] == complete[::-1]
        journal = Journal(path)
        journal.write({"failure_id": "NEXT"})
        journal.close()
        found = [one["failure_id"] for one in records_in(folder)]
        assert found[0] == "NEXT"
        assert set(found[1:]) <= {"F0", "F1", "F2", "F3"}
        if not packed:
            assert found[1:] == complete[::-1]


def test_another_may_take_the_file_away(tmp_path: Path) -> None:
    """Proves that a writer notices, and that both its files are read."""
    path = tmp_path / "failures.jsonl"
    journal = Journal(path)
    journal.write({"failure_id": "A", "operator": "x"})
    path.rename(tmp_path / "failures.20260101T000000Z-0000.jsonl")
    journal.write({"failure_id": "B", "operator": "y"})
    assert [one["failure_id"] for one in records_in(path)] == ["B", "A"]


def test_the_ring_is_bounded() -> None:
    """Proves that a storm does not fill the memory."""
    journal = Journal()
    for number in range(RING_MAX + 10):
        journal.write({"failure_id": str(number)})
    recent = journal.recent()
    assert len(recent) == RING_MAX
    assert recent[0]["failure_id"] == "10"
    assert [one["failure_id"] for one in journal.recent(2)] == ["520", "521"]


def test_any_value_has_a_plain_form() -> None:
    """Proves that keys and unknown objects become text."""
    assert plain_json({1: {"a"}, "p": Path("x")}) == {"1": ["a"], "p": "x"}


def test_a_closed_journal_opens_again(tmp_path: Path) -> None:
    """Proves that nothing said after a close is lost, neither a line nor a snapshot."""
    journal = Journal(tmp_path / "failures.jsonl")
    journal.write({"failure_id": "A", "operator": "x"})
    journal.close()
    journal.write({"failure_id": "B", "operator": "y"})
    done: list[int] = []
    assert journal.snapshot(lambda: done.append(1), 0)
    assert journal.drain()
    assert done == [1]
    assert {one["failure_id"] for one in records_in(tmp_path)} == {"A", "B"}


def test_a_journal_without_a_holder_has_no_thread(tmp_path: Path) -> None:
    """Proves that a writer's thread ends with its journal."""
    journal = Journal(tmp_path / "failures.jsonl")
    writer = journal._writer
    assert writer._runs
    del journal
    gc.collect()
    with writer._changed:
        assert writer._changed.wait_for(lambda: writer._stopped, 10)


def test_a_cascade_is_bounded_in_memory() -> None:
    """Proves that a fault which alarms at a thousand places leaves a bounded record."""
    journal = Journal()
    journal.write({"failure_id": "A", "findings": [{"check": str(n)} for n in range(1000)]})
    found = journal.find("A")
    assert found is not None
    assert len(found["findings"]) == 32
    assert found["findings_total"] == 1000
