"""From gateway to engine without Ray: a poisoned page keeps the whole trace, a clean run none."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from fastapi.responses import JSONResponse

from tests.ray_jobs.tiny_model import save_tiny_model
from tests.ray_jobs.tracing.made import tracing_in
from tocsin.core.faulting import Order, OrderStatus
from tocsin.core.history import Event, EventKind
from tocsin.core.requests import Request
from tocsin.ray_jobs.options import ServeOptions
from tocsin.ray_jobs.resume import Resumer
from tocsin.ray_jobs.stack import Stack, build
from tocsin.ray_jobs.stepper import Stepper
from tocsin.ray_jobs.tracing.context import parse
from tocsin.ray_jobs.tracing.gateway import GatewayTraces
from tocsin.ray_jobs.tracing.pipeline import Tracing
from tocsin.ray_jobs.tracing.read import Span, spans_in, spans_of
from tocsin.ray_jobs.tracing.worker import WorkerTraces
from tocsin.ray_jobs.wire import request_from_wire

TOKENS = 12


@dataclass
class Told:
    """The end of the way of events and statuses; implements `core.protocols.Sink`."""

    events: list[Event] = field(default_factory=list)
    statuses: dict[str, OrderStatus] = field(default_factory=dict)

    def emit(self, event: Event) -> None:
        self.events.append(event)

    def report(self, status: OrderStatus) -> None:
        self.statuses[status.occurrence] = status

    def failures(self) -> list[dict[str, Any]]:
        return [one.data for one in self.events if one.kind is EventKind.CHECK_FAILED]


class Served:
    """A checked replica and a gateway's resumer in front of it."""

    def __init__(self, path: Path, folder: Path) -> None:
        self.folder = folder
        self.told = Told()
        self.gateway: Tracing = tracing_in(folder, role="gateway")
        self.worker: Tracing = tracing_in(folder)
        self.traces = WorkerTraces(self.worker, self.told, self.told.report)
        self.options = ServeOptions(
            path=str(path), model=str(path), slots=4, pages=64, max_length=64
        )
        self.stepper = Stepper(self._build, lambda error: None)
        self.stepper.ready.wait()
        assert self.stepper.failed is None, self.stepper.failed

    def _build(self) -> Stack:
        return build(
            self.options,
            replica="r1",
            sink=self.traces,
            report=self.traces.report,
            trace_of=self.traces.trace_of,
        )

    def arm(self, kind: str) -> None:
        order = Order(f"{kind}@1", kind, 3, self.stepper.stack.engine.stats().step + 3, 60.0)
        self.stepper.call(lambda stack: stack.armoury.arm(order))

    async def answer(self, name: str) -> tuple[str, tuple[int, ...]]:
        """Trace id and tokens of one request."""
        resumer = Resumer(self._call, lambda replica: False, _ignore, _ignore)
        tokens: list[int] = []
        with GatewayTraces(self.gateway).begin("chat", "tiny", name, {}, {}) as trace:
            request = Request(name, tuple(range(40, 60)), TOKENS, ignore_eos=True)
            async for routed in resumer.stream(request, 60.0, trace):
                trace.hear(routed.event)
                tokens.append(getattr(routed.event, "token", -1))
            trace.answered(JSONResponse({}))
        return trace.trace_id, tuple(tokens)

    def spans(self) -> list[Span]:
        assert self.gateway.flush(10.0)
        assert self.worker.flush(10.0)
        return list(spans_in(self.folder))

    def _call(self, data: dict[str, Any]) -> "_Stream":
        request = request_from_wire(data)
        return _Stream(self.traces.messages(request, self.stepper.generate(request)))


class _Stream:
    """A worker's messages without Ray between."""

    def __init__(self, messages: AsyncGenerator[dict[str, Any], None]) -> None:
        self._messages = messages
        self._greeted = False

    def __aiter__(self) -> "_Stream":
        return self

    async def __anext__(self) -> dict[str, Any]:
        if not self._greeted:
            self._greeted = True
            return {"type": "hello", "replica": "r1"}
        return await anext(self._messages)

    def cancel(self) -> None:
        return


async def _ignore(*_: object) -> None:
    return


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def served(model: Path, tmp_path: Path) -> Iterator[Served]:
    made = Served(model, tmp_path)
    yield made
    made.stepper.stop()


async def test_a_poisoned_page_keeps_its_victims_trace_and_no_other(served: Served) -> None:
    """Sampled at 0 %: only what a check saw is on disk, and it is whole."""
    _, golden = await served.answer("calm")
    assert served.spans() == []
    served.arm("kv.poisoned_page")
    trace_id, tokens = await served.answer("victim")
    assert tokens == golden
    failures = served.told.failures()
    assert failures
    spans = {span.name: span for span in served.spans() if span.trace_id == trace_id}
    assert set(spans) == {"chat tiny", "prefill", "decode"}
    assert spans["decode"].parent_id == spans["prefill"].parent_id == spans["chat tiny"].span_id
    seen = [event for event in spans["decode"].events if event.name == "check.failed"]
    assert [event.attributes["check.id"] for event in seen] == [
        one["failure_id"] for one in failures
    ]
    assert {span.status for span in spans.values()} == {"unset"}
    await served.answer("calm again")
    assert {span.trace_id for span in served.spans() if span.name != "chaos.inject"} == {trace_id}


async def test_from_a_failure_id_to_its_trace_and_from_the_record_to_the_span(
    served: Served,
) -> None:
    """What is on a page leads to the trace; what is in the journal names trace and span."""
    served.arm("kv.poisoned_page")
    trace_id, _ = await served.answer("victim")
    record = served.told.failures()[0]
    assert served.spans()
    found = spans_of(served.folder, failure_id=record["failure_id"])
    assert {span.trace_id for span in found} == {trace_id}
    assert record["trace_id"] == trace_id
    assert record["span_id"] in {span.span_id for span in found}


async def test_an_injected_fault_links_to_the_trace_that_it_hit(served: Served) -> None:
    """The chaos side of the same story."""
    served.arm("kv.poisoned_page")
    trace_id, _ = await served.answer("victim")
    served.stepper.call(lambda stack: stack.armoury.disarm("kv.poisoned_page@1"))
    for _ in range(200):
        if served.told.statuses["kv.poisoned_page@1"].state == "healed":
            break
        await asyncio.sleep(0.05)
    (inject,) = [span for span in served.spans() if span.name == "chaos.inject"]
    assert inject.links == (trace_id,)
    assert inject.attributes["chaos.place"].startswith("page ")
    assert parse(f"00-{inject.trace_id}-{inject.span_id}-01") is not None
