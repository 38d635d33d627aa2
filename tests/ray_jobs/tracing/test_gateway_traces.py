"""The server span of a request: the caller's trace goes on, and each outcome is told as it was."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fastapi import Response
from fastapi.responses import JSONResponse, StreamingResponse

from tests.ray_jobs.tracing.made import tracing_in, written
from tocsin.core.clock import ManualClock
from tocsin.core.requests import Finish, FinishEvent, Sampling, TokenEvent
from tocsin.ray_jobs.tracing.context import parse
from tocsin.ray_jobs.tracing.gateway import GatewayTraces, Untraced, asked
from tocsin.ray_jobs.tracing.read import Span

CALLER = f"00-{'ab' * 16}-{'cd' * 8}-01"
TOKEN = TokenEvent("a", 0, 5, 0.5, True)
LENGTH = FinishEvent("a", Finish.LENGTH, 1)


class Gateway:
    """Traces of a gateway whose clock is in the test's hand."""

    def __init__(self, folder: Path, ratio: float = 0.0, *, enabled: bool = True) -> None:
        self.folder = folder
        self.clock = ManualClock(1_000_000_000)
        self.tracing = tracing_in(
            folder, ratio=ratio, role="gateway", clock=self.clock, enabled=enabled
        )
        self.traces = GatewayTraces(self.tracing)

    def begin(self, traceparent: str = "") -> Untraced:
        headers = {"traceparent": traceparent} if traceparent else {}
        wish = asked("m", 4, 8, Sampling(0.5, 0.9, -1, 7), stream=True)
        return self.traces.begin("chat", "m", "a", headers, wish)

    def spans(self) -> list[Span]:
        return written(self.tracing, self.folder)


@pytest.fixture
def gateway(tmp_path: Path) -> Gateway:
    return Gateway(tmp_path)


async def body(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def test_a_sampled_request_is_told_in_the_words_of_the_conventions(gateway: Gateway) -> None:
    """A server span below the caller's, with what was asked, used and answered."""
    with gateway.begin(CALLER) as trace:
        assert trace.attempt(0, 0) == trace.traceparent
        trace.entered("r1")
        gateway.clock.sleep(0.25)
        trace.hear(TOKEN)
        trace.hear(LENGTH)
        response = trace.answered(JSONResponse({}))
    assert response.headers["traceparent"] == trace.traceparent
    assert trace.exemplar() == {"trace_id": "ab" * 16}
    (span,) = gateway.spans()
    assert (span.name, span.kind, span.status) == ("chat m", "server", "unset")
    assert (span.trace_id, span.parent_id) == ("ab" * 16, "cd" * 8)
    assert span.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "tocsin",
        "gen_ai.request.model": "m",
        "gen_ai.response.model": "m",
        "gen_ai.response.id": "a",
        "gen_ai.request.max_tokens": 8,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.seed": 7,
        "gen_ai.request.stream": True,
        "gen_ai.usage.input_tokens": 4,
        "gen_ai.usage.output_tokens": 1,
        "gen_ai.response.finish_reasons": ["length"],
        "gen_ai.response.time_to_first_chunk": 0.25,
        "http.response.status_code": 200,
        "tocsin.request_id": "a",
        "tocsin.replica": "r1",
        "tocsin.attempts": ["r1"],
        "tocsin.outcome": "ok",
        "tocsin.kept": "sampled",
    }


async def test_an_undisturbed_request_that_is_not_sampled_leaves_nothing(gateway: Gateway) -> None:
    """It is answered with its trace all the same, so that a caller may log it."""
    with gateway.begin() as trace:
        trace.hear(TOKEN)
        assert trace.exemplar() is None
        response = trace.answered(JSONResponse({}))
    answered = parse(response.headers["traceparent"])
    assert answered is not None
    assert not answered.sampled
    assert gateway.spans() == []


async def test_a_worker_that_saw_a_failure_keeps_the_gateways_part(gateway: Gateway) -> None:
    """And a latency exemplar may point at it from then on."""
    with gateway.begin() as trace:
        trace.keep("check.failed")
        assert trace.exemplar() is not None
        trace.hear(TOKEN)
        trace.hear(LENGTH)
        trace.answered(JSONResponse({}))
    (span,) = gateway.spans()
    assert span.attributes["tocsin.kept"] == "check.failed"
    assert span.status == "unset"


async def test_a_resumed_attempt_is_a_span_whose_replica_keeps_its_part(gateway: Gateway) -> None:
    """A break is an event of the request, and the next replica is told to keep what it sees."""
    with gateway.begin() as trace:
        first = parse(trace.attempt(0, 0))
        assert first is not None
        assert not first.sampled
        trace.entered("r1")
        trace.hear(TOKEN)
        gateway.clock.sleep(1.0)
        trace.broken("r1 was silent")
        gateway.clock.sleep(0.5)
        second = parse(trace.attempt(1, 1))
        trace.entered("r2")
        gateway.clock.sleep(2.0)
        trace.hear(LENGTH)
        trace.answered(JSONResponse({}))
    server, resumed = gateway.spans()
    assert second is not None
    assert second.sampled
    assert resumed.name == "resume"
    assert resumed.parent_id == server.span_id
    assert resumed.span_id == f"{second.span_id:016x}"
    assert resumed.start_ns - server.start_ns == 1_500_000_000
    assert resumed.end_ns == server.end_ns
    assert resumed.attributes["tocsin.replica"] == "r2"
    assert resumed.attributes["tocsin.delivered_tokens"] == 1
    assert [event.name for event in server.events] == ["attempt.broken"]
    assert server.events[0].attributes == {"tocsin.replica": "r1", "why": "r1 was silent"}
    assert server.attributes["tocsin.attempts"] == ["r1", "r2"]
    assert server.attributes["tocsin.kept"] == "attempt.broken"


@pytest.mark.parametrize(("finish", "outcome"), [("refused", "refused"), ("error", "failed")])
async def test_an_answer_that_was_refused_is_an_error(
    gateway: Gateway, finish: str, outcome: str
) -> None:
    """With the reason that the client was given."""
    with gateway.begin() as trace:
        trace.hear(FinishEvent("a", Finish(finish), 0, message="no page was clean"))
        trace.answered(JSONResponse({}, status_code=500))
    (span,) = gateway.spans()
    assert (span.status, span.message) == ("error", "no page was clean")
    assert span.attributes["error.type"] == finish
    assert span.attributes["tocsin.outcome"] == outcome


async def test_a_mistake_of_the_callers_is_no_error_of_ours(gateway: Gateway) -> None:
    """As the conventions have it for servers."""
    with gateway.begin(CALLER) as trace:
        trace.answered(JSONResponse({}, status_code=404))
    (span,) = gateway.spans()
    assert span.status == "unset"
    assert span.attributes["error.type"] == "404"
    assert span.attributes["tocsin.outcome"] == "rejected"


async def test_a_check_of_the_gateways_own_is_an_event_and_keeps_the_trace(
    gateway: Gateway,
) -> None:
    """A structured answer that broke its schema does not leave: the answer is affected."""
    finding = {"check": "semantic.structured_output", "message": "no JSON", "layer": "semantic"}
    with gateway.begin() as trace:
        trace.hear(LENGTH)
        trace.check_failed({"failure_id": "01FAIL", "findings": [finding]})
        trace.answered(JSONResponse({}, status_code=502))
    (span,) = gateway.spans()
    (event,) = span.events
    assert event.name == "check.failed"
    assert event.attributes["check.id"] == "01FAIL"
    assert event.attributes["check.name"] == "semantic.structured_output"
    assert span.status == "error"


async def test_a_streamed_answer_ends_its_span_with_its_last_byte(gateway: Gateway) -> None:
    """Not with the headers."""
    with gateway.begin(CALLER) as trace:
        trace.hear(TOKEN)
        response = trace.answered(StreamingResponse(body(b"1", b"2")))
    assert gateway.spans() == []
    assert isinstance(response, StreamingResponse)
    gateway.clock.sleep(3.0)
    trace.hear(LENGTH)
    assert [chunk async for chunk in response.body_iterator] == [b"1", b"2"]
    (span,) = gateway.spans()
    assert span.end_ns - span.start_ns == 3_000_000_000
    assert span.attributes["tocsin.outcome"] == "ok"


async def test_a_client_that_leaves_a_stream_is_told_as_aborted(gateway: Gateway) -> None:
    """And what produced the stream is closed at once."""
    closed: list[bool] = []

    async def endless() -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"1"
        finally:
            closed.append(True)

    with gateway.begin(CALLER) as trace:
        response = trace.answered(StreamingResponse(endless()))
    assert isinstance(response, StreamingResponse)
    iterator = response.body_iterator
    await anext(iterator)  # type: ignore[arg-type, call-overload]
    await iterator.aclose()  # type: ignore[union-attr]
    assert closed == [True]
    (span,) = gateway.spans()
    assert span.attributes["tocsin.outcome"] == "aborted"
    assert span.status == "unset"


async def test_a_request_that_is_cut_off_before_its_answer_is_aborted(gateway: Gateway) -> None:
    """The client went away while the answer was made."""
    with pytest.raises(asyncio.CancelledError), gateway.begin(CALLER):
        raise asyncio.CancelledError
    (span,) = gateway.spans()
    assert span.attributes["tocsin.outcome"] == "aborted"


async def test_a_mistake_of_ours_keeps_the_trace_as_an_error(gateway: Gateway) -> None:
    """Whatever was raised goes on to whoever answers."""
    with pytest.raises(ZeroDivisionError), gateway.begin():
        _ = 1 / 0
    (span,) = gateway.spans()
    assert span.status == "error"
    assert span.attributes["error.type"] == "ZeroDivisionError"


async def test_switched_off_there_is_no_trace_and_no_header(tmp_path: Path) -> None:
    """OTEL_SDK_DISABLED."""
    gateway = Gateway(tmp_path, 1.0, enabled=False)
    with gateway.begin(CALLER) as trace:
        assert trace.attempt(0, 0) == ""
        trace.keep("x")
        response = trace.answered(Response())
    assert "traceparent" not in response.headers
    assert gateway.spans() == []


async def test_a_stop_text_ends_a_complete_answer(gateway: Gateway) -> None:
    """The replica's own ending never arrives."""
    with gateway.begin(CALLER) as trace:
        trace.hear(TOKEN)
        trace.stopped()
        trace.answered(JSONResponse({}))
    (span,) = gateway.spans()
    assert span.attributes["gen_ai.response.finish_reasons"] == ["stop"]
    assert span.attributes["tocsin.outcome"] == "ok"
