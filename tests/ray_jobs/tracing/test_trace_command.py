"""`tocsin trace` shows a request's story, and says what to do when there is none."""

import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.ray_jobs.tracing.made import PARENT, check_failed, tracing_in, written
from tocsin.core.clock import ManualClock
from tocsin.core.faulting import Evidence, OrderStatus
from tocsin.ray_jobs.cli import app
from tocsin.ray_jobs.tracing.context import TraceContext
from tocsin.ray_jobs.tracing.inject import InjectSpans
from tocsin.ray_jobs.tracing.notes import note_of
from tocsin.ray_jobs.tracing.read import spans_in
from tocsin.ray_jobs.tracing.record import Kind, SpanRecord
from tocsin.ray_jobs.tracing.reproduction import tell_reproduction

FAILURE = "01JABCDEFGHJKMNPQRSTVWXYZ0"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One trace of two spans, the second with a failed check."""
    tracing = tracing_in(tmp_path)
    server = SpanRecord("chat m", PARENT, None, 1_000_000, 9_000_000, Kind.SERVER)
    server.error = "no page was clean"
    inner = SpanRecord("decode", TraceContext(PARENT.trace_id, 7, True), PARENT, 3_000_000)
    inner.ended_ns = 8_000_000
    note = note_of(check_failed("a", t_ns=5_000_000, failure_id=FAILURE))
    assert note is not None
    inner.notes.add(note)
    tracing.export((server, inner))
    written(tracing, tmp_path)
    return tmp_path


@pytest.mark.parametrize("wanted", [FAILURE, FAILURE.lower(), f"{PARENT.trace_id:032x}", "latest"])
def test_each_id_shows_the_trace_as_a_tree(folder: Path, wanted: str) -> None:
    """Spans below their parents, the failed check with its time, its name and its id."""
    result = CliRunner().invoke(app, ["trace", wanted, "--folder", str(folder)])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0] == f"trace {PARENT.trace_id:032x}"
    assert lines[1] == "  chat m 8.0 ms (r1) ERROR no page was clean"
    assert lines[2] == "    decode 5.0 ms (r1)"
    assert lines[3].startswith(f"        +4.0 ms check.failed check.id={FAILURE}")
    assert "check.name=state.kv_page_sum" in lines[3]


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ("0" * 31 + "1", "once in a hundred"),
        ("01JABCDEFGHJKMNPQRSTVWXYZ1", "found no kept trace"),
        ("nonsense", "expected 32 hexadecimal digits"),
    ],
)
def test_what_is_not_there_is_said_in_one_line(folder: Path, wanted: str, says: str) -> None:
    """With what to do next."""
    result = CliRunner().invoke(app, ["trace", wanted, "--folder", str(folder)])
    assert result.exit_code == 64
    assert says in result.output
    assert len(result.output.strip().splitlines()) == 1


def test_a_reproduction_is_a_span_about_the_trace_of_its_failure(tmp_path: Path) -> None:
    """A failure whose request was not traced has one without a link."""
    facts = {"failure_id": FAILURE, "check": "state.kv_page_sum", "operator": "attention"}
    ids = {"trace_id": f"{PARENT.trace_id:032x}", "span_id": f"{PARENT.span_id:016x}"}
    tell_reproduction(tmp_path, {**facts, **ids}, "reproduced", time.monotonic_ns())
    tell_reproduction(tmp_path, {**facts, "trace_id": ""}, "error", time.monotonic_ns())
    linked, alone = sorted(spans_in(tmp_path), key=lambda span: span.start_ns)
    assert linked.name == alone.name == "reproduce"
    assert linked.links == (ids["trace_id"],)
    assert linked.attributes["check.id"] == FAILURE
    assert linked.attributes["tocsin.outcome"] == "reproduced"
    assert alone.links == ()
    assert alone.status == "error"


def test_a_fault_on_a_process_is_a_span_too_and_one_that_did_not_heal_an_error(
    tmp_path: Path,
) -> None:
    """Its victims are not known here; each occurrence is one span, however often it is told."""
    tracing = tracing_in(tmp_path, role="nemesis", clock=ManualClock(10**9))
    spans = InjectSpans(tracing)
    fired = OrderStatus("kill@1", "fired", Evidence("pid 7", "R", ""), fired_ns=10**9)
    spans.hear(fired)
    spans.hear(fired)
    spans.hear(OrderStatus("kill@1", "unhealed", fired.evidence, 10**9, 5, 2 * 10**9))
    spans.hear(OrderStatus("kill@1", "unhealed", fired.evidence, 10**9, 5, 2 * 10**9))
    (span,) = written(tracing, tmp_path)
    assert span.links == ()
    assert span.status == "error"
    assert span.attributes["chaos.state"] == "unhealed"
    assert span.end_ns - span.start_ns == 10**9


@pytest.mark.parametrize(
    "line",
    [
        '{"resourceSpans": 5}',
        '{"resourceSpans": [{"resource": null}]}',
        '{"resourceSpans": [{"scopeSpans": [{"spans": [{}]}]}]}',
        '{"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": [1], "spanId": {}, "name": 1, '
        '"startTimeUnixNano": "soon", "endTimeUnixNano": null}]}]}]}',
    ],
)
def test_lines_that_are_no_spans_are_passed_over(folder: Path, line: str) -> None:
    """Another writer's file in the folder takes nothing from the traces that are whole."""
    (folder / "other.jsonl").write_text(f"{line}\n[1]\nnull\n{{}}\n")
    result = CliRunner().invoke(app, ["trace", "latest", "--folder", str(folder)])
    assert result.exit_code == 0, result.output
    assert result.output.startswith(f"trace {PARENT.trace_id:032x}\n")
