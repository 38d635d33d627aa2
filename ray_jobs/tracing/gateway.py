"""The gateway's part of a trace: the server span of a request, and a span for each resumption."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from types import TracebackType
from typing import Any

from fastapi import Response
from fastapi.responses import StreamingResponse

from tocsin.core.history import Event, EventKind
from tocsin.core.requests import EngineEvent, Finish, Sampling, TokenEvent
from tocsin.ray_jobs.tracing import names
from tocsin.ray_jobs.tracing.context import TraceContext, from_headers, new_span_id
from tocsin.ray_jobs.tracing.notes import note_of
from tocsin.ray_jobs.tracing.pipeline import Tracing
from tocsin.ray_jobs.tracing.record import Kind, Note, SpanRecord, Value

_BROKEN = "attempt.broken"
_NAME_MAX = 200


class GatewayTraces:
    """Begins the traces of one gateway."""

    def __init__(self, tracing: Tracing) -> None:
        """No request is open."""
        self._tracing = tracing

    def begin(
        self,
        operation: str,
        model: str,
        request_id: str,
        headers: Mapping[str, str],
        asked: Mapping[str, Value],
    ) -> "Untraced":
        """The trace of a request that has just come in: the caller's, or a new one.

        Args:
            operation: `chat` or `text_completion`.
            model: that is served; the name of the span must not come from a user.
            asked: attributes of the request (`asked`).
        """
        if not self._tracing.settings.enabled:
            return Untraced()
        parent = from_headers(headers)
        now_ns = self._tracing.clock.now_ns()
        record = SpanRecord(
            f"{operation} {model}", self._tracing.head.begin(parent), parent, now_ns
        )
        record.kind = Kind.SERVER
        record.attributes = {
            names.OPERATION: operation,
            names.PROVIDER: names.TOCSIN,
            names.RESPONSE_MODEL: model,
            names.RESPONSE_ID: request_id,
            names.REQUEST_ID: request_id,
            **asked,
        }
        return RequestTrace(self._tracing, record)


def asked(
    model: str, prompt_tokens: int, max_tokens: int, sampling: Sampling, *, stream: bool
) -> dict[str, Value]:
    """What a client asks for, as attributes: never what it says."""
    return {
        names.REQUEST_MODEL: model[:_NAME_MAX],
        names.INPUT_TOKENS: prompt_tokens,
        names.MAX_TOKENS: max_tokens,
        names.TEMPERATURE: sampling.temperature,
        names.TOP_P: sampling.top_p,
        names.SEED: sampling.seed,
        names.STREAM: stream,
    }


class Untraced:
    """What a request without a trace has: nothing, and at no cost."""

    trace_id = ""
    traceparent = ""

    def attempt(self, number: int, delivered: int) -> str:
        """A worker is about to be asked; returns the traceparent that it gets."""
        return ""

    def entered(self, replica: str) -> None:
        """A replica took the request."""

    def broken(self, why: str) -> None:
        """The attempt came to nothing; the request goes on elsewhere, or fails."""

    def keep(self, why: str) -> None:
        """Something happened: the trace is exported at the end."""

    def hear(self, event: EngineEvent) -> None:
        """A token or the ending, on its way to the client."""

    def stopped(self) -> None:
        """The answer came to a stop text: it is complete."""

    def failed(self, kind: str, message: str) -> None:
        """The answer is affected: an error instead of (the rest of) it."""

    def check_failed(self, data: Mapping[str, Any]) -> None:
        """A check of the gateway's own alarmed; takes the data of its event."""

    def exemplar(self) -> dict[str, str] | None:
        """Labels of a metric's exemplar: only of a trace that is (so far) kept."""
        return None

    def answered(self, response: Response) -> Response:
        """The response, which from now on decides when the trace ends."""
        return response

    def __enter__(self) -> "Untraced":
        """Itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End a trace whose request never came to a response."""


UNTRACED = Untraced()


class RequestTrace(Untraced):
    """One request's server span, open until the last byte of its answer has left."""

    def __init__(self, tracing: Tracing, record: SpanRecord) -> None:
        """The request is here."""
        self._tracing = tracing
        self._server = record
        self._spans = [record]
        self._kept = "sampled" if record.context.sampled else ""
        self._tokens = 0
        self._finish: Finish | None = None
        self._attempts: list[str] = []
        self._answered = False
        self._ended = False
        self.trace_id = f"{record.context.trace_id:032x}"
        self.traceparent = record.context.header

    def attempt(self, number: int, delivered: int) -> str:
        """The first is a child of the server span; each further one has a span of its own."""
        if number == 0:
            return self.traceparent
        server = self._server.context
        # The break before it keeps the trace: this replica's part too, whatever it sees itself.
        context = TraceContext(server.trace_id, new_span_id(), sampled=True)
        span = SpanRecord(names.RESUME, context, server, self._now_ns())
        span.attributes = {names.ATTEMPT: number, names.DELIVERED_TOKENS: delivered}
        self._spans.append(span)
        return context.header

    def entered(self, replica: str) -> None:
        """Noted on the attempt's span."""
        self._attempts.append(replica)
        self._spans[-1].attributes[names.REPLICA] = replica

    def broken(self, why: str) -> None:
        """An event of the server span; the attempt's own span ends."""
        replica = self._attempts[-1] if self._attempts else ""
        self.keep(_BROKEN)
        now_ns = self._now_ns()
        self._server.notes.add(Note(now_ns, _BROKEN, {names.REPLICA: replica, "why": why}))
        if len(self._spans) > 1:
            self._spans[-1].ended_ns = now_ns

    def keep(self, why: str) -> None:
        """The first reason is told."""
        self._kept = self._kept or why

    def hear(self, event: EngineEvent) -> None:
        """Count tokens, time the first, note how it ended."""
        if isinstance(event, TokenEvent):
            if not self._tokens:
                since_s = (self._now_ns() - self._server.begun_ns) / 1e9
                self._server.attributes[names.FIRST_CHUNK_S] = round(since_s, 6)
            self._tokens += 1
            if event.degraded:
                self._server.attributes[names.DEGRADED] = event.degraded
            return
        self._finish = event.finish
        if not event.finish.complete:
            self.failed(str(event.finish), event.message or str(event.finish))

    def stopped(self) -> None:
        """As if the model had stopped there."""
        self._finish = Finish.STOP

    def failed(self, kind: str, message: str) -> None:
        """The span's status is an error."""
        self.keep(kind)
        self._server.error = message
        self._server.attributes[names.ERROR_TYPE] = kind

    def check_failed(self, data: Mapping[str, Any]) -> None:
        """A span event, and the trace is kept."""
        note = note_of(Event(EventKind.CHECK_FAILED, self._now_ns(), "gateway", data=dict(data)))
        if note is not None:
            self._server.notes.add(note)
        self.keep(names.CHECK_FAILED)

    def exemplar(self) -> dict[str, str] | None:
        """A link to nothing would only mislead."""
        return {"trace_id": self.trace_id} if self._kept else None

    def answered(self, response: Response) -> Response:
        """Name the trace in a header; the trace ends with the body."""
        response.headers["traceparent"] = self.traceparent
        self._answered = True
        self._server.attributes[names.HTTP_STATUS] = response.status_code
        if isinstance(response, StreamingResponse):
            response.body_iterator = self._until_sent(response.body_iterator)
            return response
        if response.status_code >= 400:
            self._server.attributes.setdefault(names.ERROR_TYPE, str(response.status_code))
        if response.status_code >= 500 and self._server.error is None:
            self.failed(str(response.status_code), f"answered {response.status_code}")
        self._end("rejected" if 400 <= response.status_code < 500 else "")
        return response

    async def _until_sent(self, body: AsyncIterable[Any]) -> AsyncIterator[Any]:
        """The body, and then the end of the trace, also when the client leaves."""
        try:
            async for chunk in body:
                yield chunk
        finally:
            await body.aclose()  # type: ignore[attr-defined]
            self._end()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """A request that was cut off, or broke the gateway."""
        if self._answered:
            return
        if error is not None and not isinstance(error, asyncio.CancelledError):
            self.failed(type(error).__name__, str(error))
        self._end()

    def _end(self, outcome: str = "") -> None:
        if self._ended:
            return
        self._ended = True
        if not self._kept:
            return
        now_ns = self._now_ns()
        attributes = self._server.attributes
        attributes[names.OUTPUT_TOKENS] = self._tokens
        attributes[names.ATTEMPTS] = tuple(self._attempts)
        attributes[names.WHY_KEPT] = self._kept
        attributes[names.OUTCOME] = outcome or self._outcome()
        if self._finish is not None:
            attributes[names.FINISH_REASONS] = (str(self._finish),)
        for span in self._spans:
            span.ended_ns = span.ended_ns or now_ns
        self._tracing.export(tuple(self._spans))

    def _outcome(self) -> str:
        """In the words of `tocsin_requests_total`."""
        if self._finish is Finish.REFUSED:
            return "refused"
        if self._server.error is not None:
            return "failed"
        return "ok" if self._finish is not None else "aborted"

    def _now_ns(self) -> int:
        return self._tracing.clock.now_ns()
