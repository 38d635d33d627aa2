"""What a replica adds to a trace: two spans, notes of what went wrong, and when it is kept."""

import threading
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from tests.ray_jobs.tracing.made import PARENT, check_failed, request_of, tracing_in, written
from tocsin.core.clock import ManualClock
from tocsin.core.errors import CapacityError
from tocsin.core.faulting import Evidence, OrderStatus
from tocsin.core.history import Event, EventKind
from tocsin.core.requests import EngineEvent, Finish, FinishEvent, Request, TokenEvent
from tocsin.ray_jobs.tracing.context import TraceContext, ids_of
from tocsin.ray_jobs.tracing.pipeline import Tracing
from tocsin.ray_jobs.tracing.read import Span
from tocsin.ray_jobs.tracing.worker import WorkerTraces

SAMPLED = TraceContext(PARENT.trace_id, PARENT.span_id, True)


class Below:
    """Where events and statuses go in the end."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.statuses: list[OrderStatus] = []

    def emit(self, event: Event) -> None:
        self.events.append(event)


class Replica:
    """A replica whose steps, failures and clock are in the test's hand."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock(1_000_000_000)
        self.folder = folder
        self.tracing: Tracing = tracing_in(folder, clock=self.clock)
        self.below = Below()
        self.traces = WorkerTraces(self.tracing, self.below, self.below.statuses.append)

    async def serve(self, request: Request, *script: Any) -> list[dict[str, Any]]:
        """Messages of one stream; a script has engine events, events, and seconds that pass."""

        async def events() -> AsyncGenerator[EngineEvent, None]:
            for one in script:
                if isinstance(one, TokenEvent | FinishEvent):
                    yield one
                elif isinstance(one, float):
                    self.clock.sleep(one)
                elif isinstance(one, Exception):
                    raise one
                elif callable(one):
                    one()
                else:
                    self.traces.emit(one)

        return [one async for one in self.traces.messages(request, events())]

    def spans(self) -> list[Span]:
        return written(self.tracing, self.folder)


@pytest.fixture
def replica(tmp_path: Path) -> Replica:
    return Replica(tmp_path)


def token(index: int, name: str = "a", *, verified: bool = True) -> TokenEvent:
    return TokenEvent(name, index, 5, 0.5, verified)


def end(finish: Finish = Finish.LENGTH, name: str = "a", message: str = "") -> FinishEvent:
    return FinishEvent(name, finish, 3, message=message)


async def test_a_sampled_request_has_prefill_and_decode_with_its_steps_in_sum(
    replica: Replica,
) -> None:
    """Two spans, whatever the number of tokens; nothing else."""
    messages = await replica.serve(
        request_of(parent=SAMPLED),
        0.5,
        token(0),
        0.1,
        token(1, verified=False),
        0.3,
        token(2),
        end(),
    )
    assert [one["type"] for one in messages] == ["token", "token", "token", "finish"]
    prefill, decode = replica.spans()
    assert (prefill.name, decode.name) == ("prefill", "decode")
    assert prefill.trace_id == decode.trace_id == f"{PARENT.trace_id:032x}"
    assert prefill.parent_id == decode.parent_id == f"{PARENT.span_id:016x}"
    assert prefill.end_ns - prefill.start_ns == 500_000_000
    assert decode.start_ns == prefill.end_ns
    assert prefill.attributes["gen_ai.usage.input_tokens"] == 3
    assert decode.attributes["tocsin.tokens"] == 3
    assert decode.attributes["tocsin.tokens_unverified"] == 1
    assert decode.attributes["tocsin.token_gap_ms_max"] == 300.0
    assert decode.attributes["tocsin.token_gap_ms_mean"] == 200.0
    assert decode.attributes["tocsin.outcome"] == "length"
    assert decode.attributes["tocsin.kept"] == "sampled"
    assert {decode.status, prefill.status} == {"unset"}


async def test_an_undisturbed_request_that_is_not_sampled_leaves_nothing(replica: Replica) -> None:
    """No span, no file, no thread."""
    before = threading.active_count()
    await replica.serve(request_of(), token(0), end())
    assert replica.spans() == []
    assert threading.active_count() == before
    assert not list(replica.folder.iterdir())


async def test_a_failed_check_keeps_the_trace_and_is_an_event_where_it_happened(
    replica: Replica,
) -> None:
    """With what the brief for people on call needs; the answer was right, so no error."""
    moment_ns = replica.clock.now_ns() + 600_000_000
    messages = await replica.serve(
        request_of(), 0.5, token(0), 0.1, check_failed("a", t_ns=moment_ns), token(1), end()
    )
    assert [one["type"] for one in messages] == ["token", "trace", "token", "finish"]
    prefill, decode = replica.spans()
    assert not prefill.events
    (event,) = decode.events
    assert event.name == "check.failed"
    assert event.t_ns - prefill.start_ns == 600_000_000
    assert event.attributes == {
        "check.id": "01FAIL",
        "check.name": "state.kv_page_sum",
        "layer": "state",
        "priority": "P0",
        "operator": "attention",
        "layer_idx": 3,
        "action": "recompute",
        "cause": "state",
        "runs": 2,
        "findings": 1,
        "message": "page 3 changed",
        "step": 7,
    }
    assert decode.status == "unset"
    assert decode.attributes["tocsin.kept"] == "check.failed"


async def test_the_gateway_is_told_once_and_before_the_next_token(replica: Replica) -> None:
    """So that it keeps its part even if this replica dies the moment after."""
    messages = await replica.serve(
        request_of(), check_failed("a"), token(0), check_failed("a"), token(1), end()
    )
    assert [one["type"] for one in messages] == ["trace", "token", "token", "finish"]


@pytest.mark.parametrize("finish", [Finish.REFUSED, Finish.ERROR])
async def test_only_an_answer_that_suffered_is_an_error(replica: Replica, finish: Finish) -> None:
    """A refusal is one, on the span in which it came."""
    messages = await replica.serve(
        request_of(), check_failed("a"), end(finish, message="no page was clean")
    )
    assert [one["type"] for one in messages] == ["trace", "finish"]
    (prefill,) = replica.spans()
    assert prefill.status == "error"
    assert prefill.message == "no page was clean"
    assert prefill.attributes["error.type"] == str(finish)


async def test_a_failure_concerns_those_that_it_names(replica: Replica) -> None:
    """The neighbour in the next slot is not kept for it."""
    neighbour = request_of("b")

    async def both() -> list[dict[str, Any]]:
        stream = replica.traces.messages(neighbour, _tokens("b", replica, check_failed("a")))
        return [one async for one in stream]

    assert [one["type"] for one in await both()] == ["token", "token", "finish"]
    assert replica.spans() == []


async def _tokens(name: str, replica: Replica, between: Event) -> AsyncGenerator[EngineEvent, None]:
    yield token(0, name)
    replica.traces.emit(between)
    yield token(1, name)
    yield end(name=name)


async def test_a_backend_error_concerns_the_requests_of_its_failure(replica: Replica) -> None:
    """The event names the failure only; who was in it was told just before."""
    raised = Event(EventKind.BACKEND_ERROR, 0, "r1", 7, data={"failure_id": "01FAIL"})
    await replica.serve(request_of("b"), check_failed("a"), raised, token(0, "b"), end(name="b"))
    assert replica.spans() == []
    await replica.serve(request_of("a"), check_failed("a"), raised, token(0), end())
    events = [event.name for span in replica.spans() for event in span.events]
    assert events == ["check.failed", "backend.failed"]


@pytest.mark.parametrize(
    ("event", "name"),
    [
        (
            Event(EventKind.BACKEND_ERROR, 0, "r1", data={"failure_id": "x", "error": "e"}),
            "backend.failed",
        ),
        (
            Event(EventKind.REQUEST_RECOMPUTED, 0, "r1", 3, "a", {"failure_id": "x"}),
            "request.recomputed",
        ),
        (
            Event(EventKind.PAGES_QUARANTINED, 0, "r1", data={"holders": ["a"], "pages": [3]}),
            "pages.quarantined",
        ),
        (
            Event(EventKind.WEIGHT_REPAIRED, 0, "r1", data={"failure_id": "x", "tile": 3}),
            "weight.repaired",
        ),
        (
            Event(EventKind.CHECK_FAILED, 0, "r1", data={"failure_id": "x", "findings": []}),
            "check.failed",
        ),
    ],
)
async def test_what_else_went_wrong_keeps_the_trace_too(
    replica: Replica, event: Event, name: str
) -> None:
    """Of this request, or of all that are here when the event names nobody."""
    await replica.serve(request_of(), event, token(0), end())
    assert [one.name for span in replica.spans() for one in span.events] == [name]


@pytest.mark.parametrize(
    "event",
    [
        Event(EventKind.REQUEST_PREEMPTED, 0, "r1", 3, "a", {"tokens": 2}),
        Event(EventKind.BREAKER, 0, "r1", data={"backend": "flash", "after": "open"}),
        Event(EventKind.SWITCHED, 0, "r1", data={}),
    ],
)
async def test_what_is_no_fault_is_told_but_keeps_nothing(replica: Replica, event: Event) -> None:
    """A preemption is daily life."""
    await replica.serve(request_of(), event, token(0), end())
    assert replica.spans() == []


async def test_every_event_goes_on_unchanged(replica: Replica) -> None:
    """The traces are a listener, not a filter."""
    event = check_failed("a")
    await replica.serve(request_of(parent=None), event, token(0), end())
    assert replica.below.events == [event]
    assert replica.spans() == []


async def test_a_client_that_leaves_ends_the_span(replica: Replica) -> None:
    """Nobody waits for an ending that will not come."""
    closed: list[bool] = []

    async def endless() -> AsyncGenerator[EngineEvent, None]:
        try:
            for index in range(100):
                yield token(index)
        finally:
            closed.append(True)

    stream = replica.traces.messages(request_of(parent=SAMPLED), endless())
    await anext(stream)
    await stream.aclose()
    assert closed == [True]
    assert replica.spans()[-1].attributes["tocsin.outcome"] == "aborted"
    assert replica.traces.trace_of("a") == ""


async def test_a_request_that_is_not_taken_leaves_nothing_open(replica: Replica) -> None:
    """The refusal goes on to the caller."""
    with pytest.raises(CapacityError):
        await replica.serve(request_of(), CapacityError("full"))
    assert replica.traces.trace_of("a") == ""


async def test_a_journal_record_finds_the_span_that_is_open(replica: Replica) -> None:
    """`trace_of` names prefill, then decode, then nothing; and the ids are those of the spans."""
    seen: list[str] = []

    def look() -> None:
        seen.append(replica.traces.trace_of("a"))

    await replica.serve(request_of(parent=SAMPLED), look, token(0), look, end())
    prefill, decode = replica.spans()
    assert [ids_of(one) for one in seen] == [
        (prefill.trace_id, prefill.span_id),
        (decode.trace_id, decode.span_id),
    ]
    assert replica.traces.trace_of("a") == ""


async def test_an_injected_fault_is_a_span_linked_to_its_victim(replica: Replica) -> None:
    """And the victim's trace is kept, whether a check saw the fault or not."""
    evidence = Evidence("page 3", "1.0", "nan", ("a",))
    fired = OrderStatus("kv@1", "fired", evidence, fired_ns=replica.clock.now_ns(), fired_step=9)
    healed = OrderStatus("kv@1", "healed", evidence, fired.fired_ns, 9, fired.fired_ns + 10**9)

    def strike() -> None:
        replica.traces.report(OrderStatus("kv@1", "armed"))
        replica.traces.report(fired)
        replica.traces.report(healed)

    await replica.serve(request_of(), strike, 0.1, token(0), end())
    spans = {span.name: span for span in replica.spans()}
    inject = spans["chaos.inject"]
    assert inject.links == (f"{PARENT.trace_id:032x}",)
    assert inject.trace_id != spans["prefill"].trace_id
    assert inject.end_ns - inject.start_ns == 10**9
    assert inject.attributes["chaos.occurrence"] == "kv@1"
    assert [event.name for event in spans["prefill"].events] == ["chaos.fired"]
    assert [status.state for status in replica.below.statuses] == ["armed", "fired", "healed"]


def test_an_order_that_never_fired_is_no_span(replica: Replica) -> None:
    """Evidence or nothing."""
    replica.traces.report(OrderStatus("kv@1", "armed"))
    replica.traces.report(OrderStatus("kv@1", "expired"))
    assert replica.spans() == []


async def test_failures_of_a_stepping_thread_and_tokens_of_a_loop_meet_safely(
    replica: Replica,
) -> None:
    """Thousands of failures while requests come and go: none is lost, nothing breaks."""
    stop = threading.Event()
    emitted = 0

    def storm() -> None:
        nonlocal emitted
        while not stop.is_set():
            replica.traces.emit(check_failed("a", "b"))
            replica.traces.trace_of("a")
            emitted += 1

    thread = threading.Thread(target=storm)
    thread.start()
    try:
        for _ in range(200):
            await replica.serve(request_of(), token(0), end())
    finally:
        stop.set()
        thread.join()
    assert len(replica.below.events) == emitted
