"""Spans reach an OTLP receiver whole, and one that is down, slow or missing costs nothing."""

import builtins
import logging
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ray_jobs.tracing.made import PARENT, tracing_in
from tests.ray_jobs.tracing.otlp_sink import OtlpSink, otlp_sink
from tocsin.ray_jobs.tracing.context import TraceContext
from tocsin.ray_jobs.tracing.otlp import OtlpDelivery, otlp_delivery
from tocsin.ray_jobs.tracing.pipeline import REQUESTS_MAX
from tocsin.ray_jobs.tracing.read import spans_in
from tocsin.ray_jobs.tracing.record import ALIKE_MAX, NOTES_MAX, Kind, Note, SpanRecord

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")


@pytest.fixture(autouse=True)
def _fresh_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests may have a receiver of their own."""
    for name in ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_HEADERS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch) -> Iterator[OtlpSink]:
    with otlp_sink() as serving:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", serving.url)
        yield serving


def record(name: str = "prefill", begun_ns: int = 1000) -> SpanRecord:
    made = SpanRecord(name, TraceContext(PARENT.trace_id, 0x11, True), PARENT, begun_ns, 5000)
    made.attributes = {"tokens": 3, "ratio": 0.5, "kept": True, "why": "x", "all": ("a", "b")}
    made.notes.add(Note(2000, "check.failed", {"check.id": "01FAIL"}))
    return made


def test_a_span_arrives_with_ids_times_attributes_events_links_and_status(
    sink: OtlpSink, tmp_path: Path
) -> None:
    """Through the official exporter, as a collector would read it."""
    made = record()
    made.kind, made.error = Kind.SERVER, "no page was clean"
    made.links = (TraceContext(0xEE, 0xFF, True),)
    tracing = tracing_in(tmp_path, otlp=otlp_delivery())
    tracing.export((made,))
    tracing.close(10.0)
    assert sink.resources[0]["service.instance.id"] == "r1"
    assert sink.resources[0]["tocsin.role"] == "worker"
    span = sink.named("prefill")
    assert span.trace_id == (0xAB).to_bytes(16, "big")
    assert span.span_id == (0x11).to_bytes(8, "big")
    assert span.parent_span_id == (0xCD).to_bytes(8, "big")
    assert span.end_time_unix_nano - span.start_time_unix_nano == 4000
    assert abs(span.start_time_unix_nano / 1e9 - (time.time() - time.monotonic())) < 1.0
    assert span.kind == span.SPAN_KIND_SERVER
    values = {one.key: one.value for one in span.attributes}
    assert values["tokens"].int_value == 3
    assert [one.string_value for one in values["all"].array_value.values] == ["a", "b"]
    assert [event.name for event in span.events] == ["check.failed"]
    assert span.events[0].time_unix_nano - span.start_time_unix_nano == 1000
    assert span.links[0].trace_id == (0xEE).to_bytes(16, "big")
    assert span.status.code == span.status.STATUS_CODE_ERROR
    assert span.status.message == "no page was clean"
    assert tracing.counts()["otlp_sent"] == 1


def test_what_is_in_the_file_is_what_the_receiver_got(sink: OtlpSink, tmp_path: Path) -> None:
    """The file's JSON is written by hand; the official encoder is its judge."""
    from google.protobuf.json_format import ParseDict
    from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

    tracing = tracing_in(tmp_path, otlp=otlp_delivery())
    made = record()
    made.links = (TraceContext(0xEE, 0xFF, True),)
    tracing.export((made, record("decode", 3000)))
    tracing.close(10.0)
    text = next(tmp_path.glob("worker-*.jsonl")).read_text()
    read = ParseDict(_with_base64_ids(text), TracesData())
    spans = [
        span for group in read.resource_spans for one in group.scope_spans for span in one.spans
    ]
    for span, sent in zip(spans, sink.spans, strict=True):
        sent.ClearField("flags")  # of the sampling: all that is written was kept
        for link in sent.links:
            link.ClearField("flags")
        assert span == sent


def _with_base64_ids(text: str) -> Any:
    """OTLP writes ids in hexadecimal, protobuf's own JSON wants base64."""
    import base64
    import json

    def translate(value: Any) -> Any:
        if isinstance(value, list):
            return [translate(one) for one in value]
        if not isinstance(value, dict):
            return value
        ids = ("traceId", "spanId", "parentSpanId")
        return {
            key: base64.b64encode(bytes.fromhex(one)).decode() if key in ids else translate(one)
            for key, one in value.items()
        }

    return translate(json.loads(text))


@pytest.mark.parametrize("state", ["down", "refuses", "hangs"])
def test_a_receiver_that_does_not_take_spans_stops_nobody(
    state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Every span is on disk at once, exporting returns at once, the end comes within its bound."""
    with otlp_sink(answer=503, hangs=state == "hangs") as sink:
        url = "http://127.0.0.1:9" if state == "down" else sink.url
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        delivery = otlp_delivery()
        assert delivery is not None
        tracing = tracing_in(tmp_path, otlp=delivery)
        began_s = time.monotonic()
        for _ in range(REQUESTS_MAX):
            tracing.export((record(),) * 5)
        exporting_s = time.monotonic() - began_s
        assert tracing.flush(10.0)
        assert len(list(spans_in(tmp_path))) == 5 * REQUESTS_MAX
        began_s = time.monotonic()
        tracing.close(1.0)
        closing_s = time.monotonic() - began_s
    assert exporting_s < 0.5
    assert closing_s < 1.5
    counts = tracing.counts()
    assert counts["otlp_sent"] == 0
    assert counts["otlp_failed"] + counts["otlp_dropped"] + 64 >= 5 * REQUESTS_MAX  # 64 under way
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]


def test_a_receivers_queue_is_bounded_and_what_it_drops_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A receiver that hangs for hours must not fill the memory of a replica."""
    with otlp_sink(hangs=True) as sink:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", sink.url)
        made = otlp_delivery()
        assert made is not None
        delivery = OtlpDelivery(made._exporter, spans_max=100)
        tracing = tracing_in(tmp_path, otlp=delivery)
        tracing.export((record(),) * 300)
        assert tracing.flush(10.0)
        assert 300 - 100 - 64 <= tracing.counts()["otlp_dropped"] <= 200
        sink.released.set()
        tracing.close(10.0)
    counts = tracing.counts()
    assert counts["otlp_sent"] + counts["otlp_dropped"] == 300


def test_without_the_package_spans_stay_in_files_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The extra is optional."""
    real = builtins.__import__

    def without(name: str, *arguments: Any, **keywords: Any) -> Any:
        if name.startswith("opentelemetry.exporter.otlp"):
            raise ImportError(name)
        return real(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", without)
    with caplog.at_level(logging.WARNING):
        assert otlp_delivery() is None
    assert "tocsin[otlp]" in caplog.text


def test_a_storm_of_events_in_one_span_is_bounded_and_counted(tmp_path: Path) -> None:
    """Thousands of failures in one answer are one span; each check is told a few times."""
    tracing = tracing_in(tmp_path)
    made = record()
    for number in range(1000):
        made.notes.add(Note(2000 + number, "check.failed", {"check.name": f"check{number % 20}"}))
    tracing.export((made,))
    tracing.close(10.0)
    (span,) = spans_in(tmp_path)
    assert len(span.events) == NOTES_MAX
    told = Counter(event.attributes.get("check.name") for event in span.events)
    assert max(told.values()) <= ALIKE_MAX
    assert span.attributes["tocsin.events_dropped"] == 1001 - NOTES_MAX
