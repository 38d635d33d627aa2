"""A run's folder keeps what the servers left on disk, and nothing stays behind elsewhere."""

import os
from pathlib import Path

import pytest

from tocsin.core.errors import EnvironmentFault
from tocsin.ray_jobs.evidence import collect, state_folder


def test_journals_snapshots_and_spans_go_where_a_reader_looks(tmp_path: Path) -> None:
    """Each kind of file has its place in the run's folder; a half-written one is no error."""
    state, run_dir = tmp_path / "state", tmp_path / "run"
    for name in ("journal/snapshots/01A/call.json", "journal/failures-a.jsonl", "spans/a.jsonl"):
        path = state / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    run_dir.mkdir()
    collect(state, run_dir)
    collect(state, run_dir)
    kept = {str(path.relative_to(run_dir)) for path in run_dir.rglob("*") if path.is_file()}
    assert kept == {
        "repro/snapshots/01A/call.json",
        "logs/failures/failures-a.jsonl",
        "logs/spans/a.jsonl",
    }


def test_the_state_of_a_run_is_gone_after_it_and_lies_beside_the_runs(tmp_path: Path) -> None:
    """It is on the disk whose room was asked for, and removed also when the run breaks."""
    state = state_folder(tmp_path / "store")
    with pytest.raises(KeyError), state as folder:
        _break_in(folder, tmp_path / "store")
    assert not list((tmp_path / "store").iterdir())


def _break_in(folder: Path, store: Path) -> None:
    assert folder.parent == store
    raise KeyError


def test_a_store_that_cannot_be_written_is_said_before_the_run(tmp_path: Path) -> None:
    """One line with the place and what to do, and not after minutes of serving."""
    (tmp_path / "store").write_text("a file")
    said = pytest.raises(EnvironmentFault, match=r"cannot be written.*--store")
    with said, state_folder(tmp_path / "store"):
        pass


def test_the_state_of_a_killed_run_is_kept_for_a_day(tmp_path: Path) -> None:
    """It may be evidence; what is older, or of a living run, is told apart from it."""
    for name, age_s in (("4194399-new", 60), ("4194399-old", 90_000), (f"{os.getpid()}-x", 90_000)):
        folder = tmp_path / f".state-{name}"
        folder.mkdir()
        then = folder.stat().st_mtime - age_s
        os.utime(folder, (then, then))
    with state_folder(tmp_path):
        pass
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {".state-4194399-new", f".state-{os.getpid()}-x"}
