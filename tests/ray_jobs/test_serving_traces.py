"""Traces through HTTP and Ray: one trace from the caller to the replica, whole when it is kept."""

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.ray_jobs.served import CHAT, Serving, wait_until
from tests.ray_jobs.test_serving import pid_of
from tests.ray_jobs.tiny_model import save_tiny_model
from tests.ray_jobs.tracing.otlp_sink import OtlpSink, otlp_sink
from tocsin.core.faulting import Order
from tocsin.core.history import EventKind
from tocsin.core.terms import Profile
from tocsin.ray_jobs.application import deploy
from tocsin.ray_jobs.cluster import Cluster, free_port
from tocsin.ray_jobs.options import ServeOptions
from tocsin.ray_jobs.system import RaySystem
from tocsin.ray_jobs.tracing.context import parse
from tocsin.ray_jobs.tracing.read import Span, spans_in, spans_of

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore")]


@dataclass
class Traced:
    """A running application, its node folder, and the receiver that its spans go to."""

    serving: Serving
    spans: Path
    sink: OtlpSink

    def of(self, trace_id: str, count: int) -> list[Span]:
        """The spans of a trace, once there are so many."""
        wait_until(
            lambda: len(spans_of(self.spans, trace_id=trace_id)) >= count, f"{count} spans", 20.0
        )
        return spans_of(self.spans, trace_id=trace_id)


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    path = save_tiny_model(tmp_path_factory.mktemp("tiny"))
    state = tmp_path_factory.mktemp("state")
    options = ServeOptions(
        path=str(path), model=str(path), profile=Profile.FULL, slots=4, pages=64, max_length=256
    )
    with otlp_sink() as sink, pytest.MonkeyPatch.context() as patch:
        # All of Ray's processes inherit these from the one that starts them.
        patch.setenv("TOCSIN_STATE", str(state))
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", sink.url)
        patch.setenv("OTEL_TRACES_SAMPLER_ARG", "0")
        with Cluster(options.replicas):
            served = deploy(options, host="127.0.0.1", port=free_port())
            system = RaySystem(served, tmp_path_factory.mktemp("cache"))
            yield Traced(Serving(served.url, options.served_name, system), state / "spans", sink)
            system.close()


def caller(number: int, *, sampled: bool) -> tuple[str, str]:
    """Trace id and header of a caller."""
    trace_id = f"{number:032x}"
    return trace_id, f"00-{trace_id}-00000000000000cd-0{int(sampled)}"


def body_of(traced: Traced, **changes: object) -> dict[str, object]:
    return traced.serving.body(max_tokens=8, stream=False, **changes)


@pytest.mark.parametrize("stream", [False, True])
def test_a_callers_trace_goes_through_http_and_ray_to_the_replica(
    traced: Traced, stream: bool
) -> None:
    """Answered with the server span; the replica's two spans are below it, in files and at OTLP."""
    trace_id, header = caller(0xA0 + stream, sampled=True)
    response = traced.serving.post(CHAT, body_of(traced) | {"stream": stream}, traceparent=header)
    assert response.status_code == 200
    answered = parse(response.headers["traceparent"])
    assert answered is not None
    assert f"{answered.trace_id:032x}" == trace_id
    server, prefill, decode = traced.of(trace_id, 3)
    assert (server.name, server.kind) == (f"chat {traced.serving.model}", "server")
    assert (prefill.name, decode.name) == ("prefill", "decode")
    assert server.parent_id == "00000000000000cd"
    assert server.span_id == f"{answered.span_id:016x}"
    assert prefill.parent_id == decode.parent_id == server.span_id
    assert (server.role, prefill.role) == ("gateway", "worker")
    assert server.attributes["gen_ai.usage.output_tokens"] == 8
    assert decode.attributes["tocsin.tokens"] == 8
    assert prefill.instance == server.attributes["tocsin.replica"]
    assert server.start_ns <= prefill.start_ns <= decode.end_ns <= server.end_ns + 50_000_000
    ids = {bytes.fromhex(span.span_id) for span in (server, prefill, decode)}
    wait_until(lambda: ids <= {span.span_id for span in list(traced.sink.spans)}, "OTLP")


def test_a_calm_request_leaves_a_header_and_nothing_else(traced: Traced) -> None:
    """Not sampled, nothing failed: no span anywhere, also none of the probes."""
    before = {span.trace_id for span in spans_in(traced.spans)}
    response = traced.serving.post(CHAT, body_of(traced))
    answered = parse(response.headers["traceparent"])
    assert answered is not None
    assert not answered.sampled
    refused = traced.serving.post(CHAT, body_of(traced) | {"model": "another"})
    assert refused.status_code == 404
    assert "traceparent" in refused.headers
    # A request that is kept comes after: what was kept before it would be there.
    trace_id, header = caller(0xB0, sampled=True)
    traced.serving.post(CHAT, body_of(traced), traceparent=header)
    traced.of(trace_id, 3)
    assert {span.trace_id for span in spans_in(traced.spans)} - before == {trace_id}


async def test_a_fault_in_a_replica_keeps_the_trace_that_it_hit(traced: Traced) -> None:
    """From the failure's id to the whole trace, and from the injection to its victim."""
    serving = traced.serving
    since = serving.now()
    for number, replica in enumerate(serving.alive()):
        order = Order(f"poison@{number}", "kv.poisoned_page", 3, replica.step + 3, 30.0)
        serving.system.arm(replica.replica, order)
    wait_until(lambda: len(serving.system.orders()) == 2, "both orders")
    await asyncio.gather(*(serving.answer(max_tokens=40) for _ in range(4)))
    for number in range(2):
        serving.system.disarm(f"poison@{number}")
    wait_until(lambda: bool(serving.events(EventKind.CHECK_FAILED, since)), "an alarm")
    failure = serving.events(EventKind.CHECK_FAILED, since)[0]
    failure_id = failure.data["failure_id"]
    wait_until(
        lambda: (
            {"gateway", "worker"}
            <= {span.role for span in spans_of(traced.spans, failure_id=failure_id)}
        ),
        "both sides of the trace",
        20.0,
    )
    found = spans_of(traced.spans, failure_id=failure_id)
    assert {span.name for span in found} >= {"prefill", "decode"}
    assert failure.data["trace_id"] in {span.trace_id for span in found}
    wait_until(
        lambda: any(span.name == "chaos.inject" for span in spans_in(traced.spans)),
        "the injection's span",
        20.0,
    )
    links = {
        link
        for span in spans_in(traced.spans)
        if span.name == "chaos.inject"
        for link in span.links
    }
    assert links & {span.trace_id for span in spans_in(traced.spans) if span.name == "decode"}


async def test_a_request_that_outlives_its_replica_is_one_trace(traced: Traced) -> None:
    """The break is an event, the second replica's spans hang below the resumption."""
    trace_id, header = caller(0xC0, sampled=False)
    victim = ""
    async with (
        httpx.AsyncClient(timeout=60.0) as client,
        client.stream(
            "POST",
            f"{traced.serving.url}{CHAT}",
            json=traced.serving.body(),
            headers={"traceparent": header},
        ) as response,
    ):
        tokens = 0
        async for line in response.aiter_lines():
            own = json.loads(line[6:])["tocsin"] if line.startswith("data: {") else {}
            tokens += "token" in own
            if tokens == 5 and not victim:
                victim = own["replica"]
                os.kill(pid_of(traced.serving, victim), signal.SIGKILL)
    spans = {span.name: span for span in traced.of(trace_id, 4)}
    server, resumed = spans[f"chat {traced.serving.model}"], spans["resume"]
    assert [event.name for event in server.events] == ["attempt.broken"]
    assert server.events[0].attributes["tocsin.replica"] == victim
    assert resumed.parent_id == server.span_id
    assert resumed.attributes["tocsin.replica"] != victim
    assert spans["decode"].parent_id == spans["prefill"].parent_id == resumed.span_id
    assert spans["prefill"].attributes["tocsin.delivered_tokens"] >= 5
    assert server.status == "unset"
    assert server.attributes["tocsin.outcome"] == "ok"
