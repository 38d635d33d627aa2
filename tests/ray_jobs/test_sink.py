"""The run's own receiver: it takes or refuses, owes what it refused, and no alert is lost."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import httpx
import pytest

from tests.chaos.experiments import small
from tocsin.chaos.side import ALERTS, SPANS, SideStriker, SideTarget
from tocsin.chaos.spec_file import parse_experiment
from tocsin.core.clock import SystemClock
from tocsin.core.faulting import Order, OrderStatus
from tocsin.ray_jobs.ground import needs_sink
from tocsin.ray_jobs.pager import Pager, Paging
from tocsin.ray_jobs.sink import Sink


@pytest.fixture
def sink() -> Iterator[Sink]:
    with closing(Sink()) as made:
        yield made


def push(sink: Sink, name: str = "a") -> int:
    """One alert, as Alertmanager's API takes it; the status that answers."""
    alert = {"labels": {"alertname": name}}
    return httpx.post(f"{sink.url}/api/v2/alerts", json=[alert], trust_env=False).status_code


def send_spans(sink: Sink, timeout_s: float = 10.0) -> int:
    """Some bytes, as an exporter sends them."""
    url = f"{sink.url}/v1/traces"
    return httpx.post(url, content=b"spans", timeout=timeout_s, trust_env=False).status_code


def test_it_takes_what_comes_and_says_where_it_is(sink: Sink) -> None:
    """The processes of an application find it by their environment."""
    assert (push(sink), send_spans(sink)) == (200, 200)
    told = sink.environment()
    assert told["TOCSIN_ALERTMANAGER_URL"] == told["OTEL_EXPORTER_OTLP_ENDPOINT"] == sink.url
    assert (sink.refused(ALERTS), sink.refused(SPANS)) == (0, 0)


def test_an_alert_that_was_refused_is_owed_until_it_comes_again(sink: Sink) -> None:
    """Another one does not make up for it."""
    sink.refuse(ALERTS, 60.0, hang=False)
    assert push(sink, "a") == 500
    assert send_spans(sink) == 200
    sink.take(ALERTS)
    assert push(sink, "b") == 200
    assert (sink.refused(ALERTS), sink.owed()) == (1, 1)
    assert push(sink, "a") == 200
    assert sink.owed() == 0


def test_a_collector_that_hangs_says_nothing_until_it_takes_again(sink: Sink) -> None:
    """The connection ends without an answer: what was sent is not known to have come."""
    sink.refuse(SPANS, 60.0, hang=True)

    def take_when_refused() -> None:
        while not sink.refused(SPANS):
            time.sleep(0.01)
        sink.take(SPANS)

    threading.Thread(target=take_when_refused, daemon=True).start()
    with pytest.raises(httpx.HTTPError):
        send_spans(sink)
    assert sink.refused(SPANS) == 1
    assert send_spans(sink) == 200


def test_refusing_ends_by_itself(sink: Sink) -> None:
    """Nobody need be there to take it back."""
    sink.refuse(ALERTS, 0.05, hang=False)
    until_s = time.monotonic() + 30.0
    while push(sink) != 200:
        assert time.monotonic() < until_s
    assert not sink.refuses(ALERTS)


class Struck:
    """A striker with the sink, and whatever makes something come to it."""

    def __init__(self, sink: Sink | None, page: Callable[[], None]) -> None:
        self.reports: list[OrderStatus] = []
        self.sink, self.page = sink, page
        self.striker = SideStriker(SystemClock(), self.reports.append, self._target)

    def _target(self, params: Any, seed: int) -> SideTarget:
        return SideTarget(
            None, lambda: False, (), "", params, seed, SystemClock(), self.sink, self.page
        )

    def strike(self, kind: str, **params: Any) -> OrderStatus:
        return self.striker.strike(Order("it@0", kind, 1, 0, 60.0, params))


async def test_a_pager_keeps_an_alert_until_its_receiver_takes_it(sink: Sink) -> None:
    """Refused with 500, late by a detector's word, sent again, and none is owed in the end."""
    heard: list[str] = []
    pager = Pager(Paging((sink.url,)), count=lambda receiver, result: heard.append(result))
    loop = asyncio.get_running_loop()

    def page() -> None:
        loop.call_soon_threadsafe(pager.window_crossed, "m", "drill")

    struck = Struck(sink, page)
    status = await asyncio.to_thread(struck.strike, "alert.sink_down", duration_s=30.0)
    assert status.state == "fired", status.error
    assert sink.owed() == 1
    struck.striker.tick()
    assert struck.striker.statuses()[0].state == "fired"
    sink.take(ALERTS)
    while pager._tasks:
        await asyncio.gather(*pager._tasks)
    struck.striker.tick()
    assert struck.striker.statuses()[0].state == "healed"
    assert heard[0] == "retried"
    assert heard[-1] == "ok"
    await pager.close()


def test_a_collector_is_struck_while_spans_come(sink: Sink) -> None:
    """And takes them again when it is healed."""

    def in_vain() -> None:
        with pytest.raises(httpx.HTTPError):
            send_spans(sink)

    spans = threading.Thread(target=in_vain)
    struck = Struck(sink, lambda: None)
    threading.Timer(0.1, spans.start).start()
    status = struck.strike("obs.otel_backpressure", duration_s=30.0)
    assert status.state == "fired", status.error
    assert status.evidence is not None
    assert (status.evidence.before, status.evidence.after) == (
        "0 messages not answered",
        "1 messages not answered",
    )
    struck.striker.disarm("it@0")
    assert struck.striker.statuses()[0].state == "healed"
    spans.join()
    assert send_spans(sink) == 200


@pytest.mark.parametrize("kind", ["alert.sink_down", "obs.otel_backpressure"])
def test_where_nothing_comes_nothing_has_fired_and_all_is_taken(sink: Sink, kind: str) -> None:
    """A receiver that nobody sends to proves nothing."""
    status = Struck(sink, lambda: None).strike(kind, duration_s=0.2)
    assert (status.state, status.fired_ns) == ("disarmed", 0)
    assert push(sink) == send_spans(sink) == 200


@pytest.mark.parametrize("kind", ["alert.sink_down", "obs.otel_backpressure"])
def test_receivers_of_others_are_left_alone(kind: str) -> None:
    """On an application that is served already there is nothing to strike."""
    status = Struck(None, lambda: None).strike(kind)
    assert status.state == "disarmed"
    assert "not the run's own" in status.error


@pytest.mark.parametrize(
    ("kind", "needed"),
    [("alert.sink_down", True), ("obs.otel_backpressure", True), ("obs.metrics_outage", False)],
)
def test_only_a_run_that_needs_it_opens_one(kind: str, needed: bool) -> None:
    """Others leave alerts and spans where they go."""
    fault = {"id": "it", "kind": kind, "when": {"clock": "request", "at": [1]}}
    spec = parse_experiment(small(faults=[fault], safety={"scope": "isolated"}))
    assert needs_sink(spec) is needed
