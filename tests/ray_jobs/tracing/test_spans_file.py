"""Span files: rotated, capped, readable back, and no reason for anything to stop."""

import json
import logging
import os
from pathlib import Path

import pytest

from tests.ray_jobs.tracing.made import check_failed, tracing_in, written
from tocsin.core.clock import ManualClock
from tocsin.ray_jobs.tracing.assemble import Assembler
from tocsin.ray_jobs.tracing.context import TraceContext
from tocsin.ray_jobs.tracing.notes import note_of
from tocsin.ray_jobs.tracing.pipeline import Tracing
from tocsin.ray_jobs.tracing.read import collect, latest, spans_in, spans_of
from tocsin.ray_jobs.tracing.record import SpanRecord
from tocsin.ray_jobs.tracing.spans_file import SpanFile


def record(trace: int, span: int, begun_ns: int, failure_id: str = "") -> SpanRecord:
    made = SpanRecord("prefill", TraceContext(trace, span, True), None, begun_ns, begun_ns + 5)
    note = note_of(check_failed("a", t_ns=begun_ns, failure_id=failure_id)) if failure_id else None
    if note is not None:
        made.notes.add(note)
    return made


def spans(*records: SpanRecord) -> list[object]:
    made: list[object] = []
    Assembler("worker", "r1", made.append).assemble(records, 0)
    return made


def test_a_failure_leads_to_its_whole_trace(tmp_path: Path) -> None:
    """Spans of all processes, by their start, those of other traces left out."""
    gateway, worker = tmp_path / "a", tmp_path / "b"
    one = tracing_in(gateway, role="gateway")
    one.export((record(1, 1, 100), record(2, 2, 50)))
    written(one, gateway)
    two = tracing_in(worker)
    two.export((record(1, 3, 200, "01FAIL"), record(2, 4, 60, "01OTHER")))
    written(two, worker)
    found = spans_of(tmp_path, failure_id="01FAIL")
    assert [span.span_id[-1] for span in found] == ["1", "3"]
    assert [span.role for span in found] == ["gateway", "worker"]
    assert found[1].events[0].attributes["check.id"] == "01FAIL"
    assert spans_of(tmp_path, trace_id=found[0].trace_id) == found
    assert spans_of(tmp_path, failure_id="01NONE") == spans_of(tmp_path) == []
    assert [trace[0].trace_id[-1] for trace in latest(tmp_path)] == ["1", "2"]
    assert len(latest(tmp_path, 1)) == 1
    json.dumps([span.to_json() for span in found], allow_nan=False)


def test_spans_of_a_run_go_into_one_file_in_order(tmp_path: Path) -> None:
    """As a run keeps them; a folder that is not there is an empty one."""
    for number, begun_ns in enumerate((300_000_000, 100_000_000, 200_000_000)):
        folder = tmp_path / "node" / str(number)
        tracing = tracing_in(folder)
        tracing.export((record(number + 1, 1, begun_ns),))
        written(tracing, folder)
    target = tmp_path / "run" / "spans.jsonl"
    assert collect(tmp_path / "node", target) == 3
    assert [span.trace_id[-1] for span in spans_in(target.parent)] == ["2", "3", "1"]
    assert collect(tmp_path / "nothing", target) == 0


def test_a_line_that_is_cut_off_or_foreign_is_passed_over(tmp_path: Path) -> None:
    """A replica was killed while it wrote."""
    file = SpanFile(tmp_path, "worker")
    assert file.write(spans(record(1, 1, 100)))  # type: ignore[arg-type]
    whole = file.path.read_text()
    file.path.write_text(whole + "[]\n" + whole[: len(whole) // 2])
    assert len(list(spans_in(tmp_path))) == 1


def test_files_are_rotated_and_the_oldest_removed_beyond_the_cap(tmp_path: Path) -> None:
    """The folder never holds more than its cap, however long a process writes."""
    stale = tmp_path / "worker-1.jsonl"
    stale.write_text("x" * 3000)
    os.utime(stale, (1, 1))
    file = SpanFile(tmp_path, "worker", bytes_max=2000, folder_bytes_max=10_000)
    sizes = []
    for number in range(60):
        assert file.write(spans(record(number + 1, 1, number)))  # type: ignore[arg-type]
        sizes.append(sum(path.stat().st_size for path in tmp_path.glob("*.jsonl")))
    assert max(sizes) <= 10_000
    assert not stale.exists()
    kept = sorted(span.trace_id for span in spans_in(tmp_path))
    assert kept[-1] == f"{60:032x}"
    assert kept == [f"{number:032x}" for number in range(61 - len(kept), 61)]
    assert file.path.stat().st_size <= 2000


def test_a_disk_that_takes_nothing_is_said_once_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A file stands where the folder should be."""
    blocked = tmp_path / "spans"
    blocked.write_text("")
    tracing = tracing_in(blocked)
    for number in range(5):
        tracing.export((record(number + 1, 1, number),))
        assert tracing.flush(10.0)
    assert tracing.counts()["spans_failed"] == 5
    assert tracing.counts()["spans_written"] == 0
    errors = [one for one in caplog.records if one.levelno >= logging.ERROR]
    assert len(errors) == 1
    assert "free the disk" in errors[0].message


def test_a_storm_keeps_so_many_traces_in_any_second_and_counts_the_others(tmp_path: Path) -> None:
    """A node that fails thousands of requests a minute does not fill its disk with alike ones."""
    clock = ManualClock()
    tracing = Tracing(tmp_path, "worker", clock=clock, per_s=10)
    for number in range(300):  # a hundred a second
        tracing.export((record(number + 1, 1, number),))
        clock.sleep(0.01)
    assert tracing.flush(10.0)
    counts = tracing.counts()
    assert counts["spans_written"] == 30
    assert counts["requests_limited"] == 270
