"""Gateway and replicas decide alike: whatever happens, a trace is whole or absent."""

import asyncio
import tempfile
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastapi.responses import JSONResponse
from hypothesis import given, settings
from hypothesis import strategies as st
from ray.exceptions import ActorDiedError

from tests.ray_jobs.tracing.made import check_failed, tracing_in, written
from tocsin.core.history import Event
from tocsin.core.requests import EngineEvent, Finish, FinishEvent, Request, TokenEvent
from tocsin.ray_jobs.resume import Resumer, Stream
from tocsin.ray_jobs.tracing.context import TraceContext
from tocsin.ray_jobs.tracing.gateway import GatewayTraces
from tocsin.ray_jobs.tracing.pipeline import Tracing
from tocsin.ray_jobs.tracing.read import Span
from tocsin.ray_jobs.tracing.worker import WorkerTraces
from tocsin.ray_jobs.wire import request_from_wire

TOKENS = 4


@dataclass(frozen=True)
class Attempt:
    """What one replica does with the request.

    Attributes:
        failures: before which tokens a check fails; after the last: before the ending.
        breaks_at: the token at which its process is gone, None: it comes to its `finish`.
    """

    failures: frozenset[int]
    breaks_at: int | None = None
    finish: Finish = Finish.LENGTH


ATTEMPTS = st.builds(
    lambda broken, last: (*broken, last),
    st.lists(
        st.builds(
            Attempt,
            st.frozensets(st.integers(0, TOKENS)),
            st.integers(0, TOKENS) | st.none(),
            st.just(Finish.ERROR),
        ),
        max_size=2,
    ),
    st.builds(
        Attempt,
        st.frozensets(st.integers(0, TOKENS)),
        st.none(),
        st.sampled_from((Finish.LENGTH, Finish.REFUSED, Finish.ERROR)),
    ),
)


class Nowhere:
    def emit(self, event: Event) -> None:
        """Drop it."""


@dataclass
class Fleet:
    """A gateway and a replica for each attempt, each with a span file of its own."""

    folder: Path
    attempts: tuple[Attempt, ...]
    tracings: list[Tracing] = field(default_factory=list)

    async def serve(self, *, sampled: bool) -> None:
        gateway = tracing_in(self.folder / "gateway", role="gateway")
        self.tracings.insert(0, gateway)
        caller = TraceContext(1, 2, sampled)
        resumer = Resumer(self._call, lambda replica: False, _ignore, _ignore)
        begun = GatewayTraces(gateway).begin("chat", "m", "a", {"traceparent": caller.header}, {})
        with begun as trace:
            async for routed in resumer.stream(Request("a", (1, 2), TOKENS), 30.0, trace):
                trace.hear(routed.event)
            trace.answered(JSONResponse({}))

    def spans(self) -> list[list[Span]]:
        """Of the gateway, then of each replica that was asked."""
        folders = [self.folder / "gateway"]
        folders += [self.folder / str(number) for number in range(len(self.tracings) - 1)]
        pairs = zip(self.tracings, folders, strict=True)
        return [written(tracing, folder) for tracing, folder in pairs]

    def _call(self, data: dict[str, Any]) -> Stream:
        number = len(self.tracings) - 1
        tracing = tracing_in(self.folder / str(number))
        self.tracings.append(tracing)
        return _Streaming(self._replica(number, tracing, request_from_wire(data)))

    async def _replica(
        self, number: int, tracing: Tracing, request: Request
    ) -> AsyncGenerator[dict[str, Any], None]:
        traces = WorkerTraces(tracing, Nowhere(), lambda status: None)
        attempt = self.attempts[min(number, len(self.attempts) - 1)]  # a failed one goes on
        yield {"type": "hello", "replica": f"r{number}"}
        async for message in traces.messages(request, _answer(attempt, traces, request)):
            yield message


async def _answer(
    attempt: Attempt, traces: WorkerTraces, request: Request
) -> AsyncGenerator[EngineEvent, None]:
    for index in range(TOKENS + 1):
        if index in attempt.failures and (attempt.breaks_at is None or index < attempt.breaks_at):
            traces.emit(check_failed(request.request_id))
        if index == attempt.breaks_at:
            raise ActorDiedError
        if index < TOKENS and index >= len(request.delivered):
            yield TokenEvent(request.request_id, index, 5, 0.5, True)
    yield FinishEvent(request.request_id, attempt.finish, TOKENS)


class _Streaming:
    """A worker's stream as the gateway sees it."""

    def __init__(self, messages: AsyncGenerator[dict[str, Any], None]) -> None:
        self._messages = messages

    def __aiter__(self) -> "_Streaming":
        return self

    async def __anext__(self) -> dict[str, Any]:
        return await anext(self._messages)

    def cancel(self) -> None:
        return


async def _ignore(*_: object) -> None:
    return


@settings(max_examples=25)
@given(ATTEMPTS, st.booleans())
def test_a_trace_is_whole_or_absent(attempts: tuple[Attempt, ...], sampled: bool) -> None:
    """Kept exactly if sampled, failed, refused or resumed; then all that lived to tell have it."""
    with tempfile.TemporaryDirectory() as name:
        fleet = Fleet(Path(name), attempts)
        asyncio.run(fleet.serve(sampled=sampled))
        gateway, *replicas = fleet.spans()
    last = attempts[-1]
    # A failure of the last moment before a break was told to nobody.
    expected = (
        sampled or len(replicas) > 1 or bool(last.failures) or last.finish is not Finish.LENGTH
    )
    assert bool(gateway) == expected
    assert bool(replicas[-1]) == expected
    assert {span.trace_id for spans in (gateway, *replicas) for span in spans} <= {f"{1:032x}"}
    names = [span.name for span in gateway]
    assert names.count("resume") == (len(replicas) - 1 if gateway else 0)
    known = {span.span_id for span in gateway}
    for span in replicas[-1]:
        assert span.parent_id in known
