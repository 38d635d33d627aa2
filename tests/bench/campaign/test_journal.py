"""The journal of shards survives a kill at any byte."""

from pathlib import Path

from tocsin.bench.campaign.journal import Journal, line_of, read

RECORDS = {
    "a": {"n": 1, "ratio": 1e30},
    "b": {"text": "line\nbreak \x1e and \x85"},
    "c": {"n": 3},
}


def written(path: Path) -> Journal:
    journal = Journal(path)
    for key, record in RECORDS.items():
        journal.append(key, record)
    return journal


def test_what_was_written_is_read(tmp_path: Path) -> None:
    """Keys and records, whatever their texts hold."""
    assert written(tmp_path / "j.jsonl").read() == RECORDS


def test_a_cut_at_any_byte_loses_only_the_cut_line(tmp_path: Path) -> None:
    """And the shard that is written next is found, though it follows half a line."""
    whole = written(tmp_path / "whole.jsonl").path.read_bytes()
    ends = []
    for key, record in RECORDS.items():
        ends.append(len(line_of(key, record)) + (ends[-1] if ends else 0))
    for cut in range(len(whole) + 1):
        path = tmp_path / "cut.jsonl"
        path.write_bytes(whole[:cut])
        # A line that lacks only its newline is whole: its checksum says so.
        kept = {key: RECORDS[key] for key, end in zip(RECORDS, ends, strict=True) if cut >= end - 1}
        journal = Journal(path)
        assert journal.read() == kept
        journal.append("next", {"n": 4})
        assert journal.read() == {**kept, "next": {"n": 4}}


def test_a_damaged_line_counts_as_never_written(tmp_path: Path) -> None:
    """Every single changed byte of a line is seen by its checksum."""
    journal = written(tmp_path / "j.jsonl")
    whole = journal.path.read_bytes()
    for place in range(len(line_of("a", RECORDS["a"])) - 1):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        journal.path.write_bytes(bytes(damaged))
        assert "a" not in journal.read()
        assert set(journal.read()) <= {"b", "c"}


def test_the_first_line_of_a_key_counts(tmp_path: Path) -> None:
    """Two machines that did the same shard make one trial of it."""
    for name, value in (("a", 1), ("b", 2)):
        Journal(tmp_path / name).append("key", {"n": value})
    assert read([tmp_path / "b", tmp_path / "a"]) == {"key": {"n": 1}}
