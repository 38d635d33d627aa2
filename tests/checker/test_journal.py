"""The journal: one line a failure, valid JSON whatever the numbers, bounded, never in the way."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tocsin.checker.journal import RING_MAX, Journal, plain_json


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


def test_it_rotates_by_size_and_keeps_so_many_files(tmp_path: Path) -> None:
    """Proves the bound on disk, and that the newest records are found."""
    path = tmp_path / "failures.jsonl"
    journal = Journal(path, bytes_max=200, files_max=2)
    for number in range(40):
        journal.write({"failure_id": f"F{number:02}", "filler": "x" * 60})
    files = sorted(file.name for file in tmp_path.iterdir())
    assert files == ["failures.jsonl", "failures.jsonl.1", "failures.jsonl.2"]
    assert all(file.stat().st_size <= 200 for file in tmp_path.iterdir())
    assert json.loads(path.read_text().splitlines()[-1])["failure_id"] == "F39"


def test_a_failure_is_found_after_a_restart(tmp_path: Path) -> None:
    """Proves that the files answer where the ring is empty."""
    path = tmp_path / "failures.jsonl"
    first = Journal(path, bytes_max=150, files_max=3)
    for number in range(6):
        first.write({"failure_id": f"F{number}", "filler": "x" * 40})
    again = Journal(path, bytes_max=150, files_max=3)
    found = again.find("F2")
    assert found is not None
    assert found["failure_id"] == "F2"
    assert again.find("F") is None
    assert again.find("G1") is None


def test_a_disk_that_takes_nothing_is_counted_and_never_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Proves that a full disk does not stop serving, and is said."""
    journal = Journal(tmp_path / "failures.jsonl")

    def full(*args: Any, **kwargs: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "open", full)
    journal.write({"failure_id": "A"})
    assert journal.counters.journal_dropped == 1
    assert journal.find("A") is not None
    assert "No space left" in caplog.text


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
