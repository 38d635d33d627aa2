"""What traces cost on the way of a request: paired, in CPU time, with sinks up, down and hanging.

`python -m tocsin.ray_jobs.tracing.cost` prints one line a variant. Each pair answers the same
requests once without and once with traces, in alternating order, in one process, with an engine
that costs nothing; the figure is the median difference over the pairs. CPU time of the whole
process counts, threads of the exporters included, because neighbours on the machine disturb it
less than they disturb the clock on the wall.
"""

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tocsin.core.history import Event, EventKind
from tocsin.core.requests import EngineEvent, Finish, FinishEvent, Request, TokenEvent
from tocsin.ray_jobs.tracing.gateway import UNTRACED, GatewayTraces, Untraced
from tocsin.ray_jobs.tracing.otlp import otlp_delivery
from tocsin.ray_jobs.tracing.pipeline import Tracing
from tocsin.ray_jobs.tracing.settings import TraceSettings
from tocsin.ray_jobs.tracing.worker import WorkerTraces

TOKENS = 64
"""Of an answer: what the gateway gives when nobody asks for more."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to trace.

    Attributes:
        sampled: whether every request is kept (one in a hundred is, in daily life).
        failures: checks that fail in each answer.
        sink: `none`, `up`, `down` or `hangs`.
    """

    name: str
    sampled: bool = False
    failures: int = 0
    sink: str = "none"


VARIANTS = (
    Variant("nothing kept"),
    Variant("every request kept, file only", sampled=True),
    Variant("every request kept, receiver up", sampled=True, sink="up"),
    Variant("every request kept, receiver down", sampled=True, sink="down"),
    Variant("every request kept, receiver hangs", sampled=True, sink="hangs"),
    Variant("ten failed checks in every request", failures=10),
)


class Nowhere:
    """Implements `core.protocols.Sink`."""

    def emit(self, event: Event) -> None:
        """Drop it."""


class Serving:
    """The way of a request through gateway and worker, with an engine that costs nothing."""

    def __init__(self, folder: Path, variant: Variant) -> None:
        """Make both sides' traces."""
        settings = TraceSettings(ratio=1.0 if variant.sampled else 0.0)
        sinks = [otlp_delivery() if variant.sink != "none" else None for _ in range(2)]
        self._variant = variant
        self.gateway = Tracing(folder, "gateway", settings=settings, otlp=sinks[0])
        self.worker = Tracing(folder, "worker", settings=settings, otlp=sinks[1])
        self._begin = GatewayTraces(self.gateway)
        self._traces = WorkerTraces(self.worker, Nowhere(), lambda status: None)

    async def answers(self, count: int, *, traced: bool) -> None:
        """Answer so many requests, one after the other."""
        for number in range(count):
            await self._answer(f"r{number}", traced=traced)

    async def _answer(self, name: str, *, traced: bool) -> None:
        trace: Untraced = self._begin.begin("chat", "m", name, {}, {}) if traced else UNTRACED
        request = Request(name, (1, 2, 3), TOKENS, traceparent=trace.attempt(0, 0))
        async for message in self._traces.messages(request, self._engine(name, traced=traced)):
            if message["type"] == "trace":
                trace.keep(message["why"])
            elif message["type"] == "token":
                trace.hear(TokenEvent(name, message["index"], message["token"], 0.5, True))
        trace.hear(FinishEvent(name, Finish.LENGTH, TOKENS))
        trace.__exit__(None, None, None)

    async def _engine(self, name: str, *, traced: bool) -> AsyncGenerator[EngineEvent, None]:
        every = TOKENS // self._variant.failures if self._variant.failures and traced else 0
        for index in range(TOKENS):
            if every and index % every == 0:
                self._traces.emit(_failure(name))
            yield TokenEvent(name, index, 5, 0.5, True)
        yield FinishEvent(name, Finish.LENGTH, TOKENS)

    def close(self) -> None:
        """Write what waits, for two seconds at most."""
        self.gateway.close()
        self.worker.close()


def _failure(name: str) -> Event:
    data = {"failure_id": "01FAIL", "request_ids": [name], "check": "state.kv_page_sum", "runs": 2}
    return Event(EventKind.CHECK_FAILED, time.monotonic_ns(), "r1", 7, data=data)


@contextmanager
def sink_of(variant: Variant) -> Iterator[str]:
    """The address of a receiver that is up, down, or takes connections and never answers."""
    if variant.sink in ("none", "down"):
        yield "http://127.0.0.1:9"
        return
    answering = threading.Event()
    if variant.sink == "up":
        answering.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            answering.wait()
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads, server.block_on_close = True, False
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def measure(variant: Variant, pairs: int, requests: int) -> dict[str, Any]:
    """Cost of the traces of one variant.

    Returns:
        `us_per_token`: CPU time that traces add, over the tokens of an answer, whole process;
        `us_per_token_wall`: the same on the clock, as who waits for the token sees it.
    """
    with sink_of(variant) as url, tempfile.TemporaryDirectory() as folder:
        os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = url
        serving = Serving(Path(folder), variant)
        asyncio.run(serving.answers(requests, traced=True))  # first imports and threads
        cpu, wall = [], []
        for pair in range(pairs):
            spent: dict[bool, tuple[int, int]] = {}
            for traced in (False, True) if pair % 2 else (True, False):
                began = time.process_time_ns(), time.perf_counter_ns()
                asyncio.run(serving.answers(requests, traced=traced))
                if traced:  # the writing belongs to it
                    serving.gateway.flush()
                    serving.worker.flush()
                ended = time.process_time_ns(), time.perf_counter_ns()
                spent[traced] = (ended[0] - began[0], ended[1] - began[1])
            tokens = requests * TOKENS
            cpu.append((spent[True][0] - spent[False][0]) / tokens / 1e3)
            wall.append((spent[True][1] - spent[False][1]) / tokens / 1e3)
        counts = {**serving.worker.counts()}
        serving.close()
    return {
        "variant": variant.name,
        "us_per_token": round(statistics.median(cpu), 3),
        "us_per_token_wall": round(statistics.median(wall), 3),
        "pairs": pairs,
        "counts": counts,
    }


def main() -> None:
    """Print the figures, and what they are of a decode step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--step-ms", type=float, default=99.0, help="a decode step, for the share")
    parser.add_argument("--rows", type=int, default=8, help="tokens of a decode step")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    for variant in VARIANTS:
        figures = measure(variant, options.pairs, options.requests)
        share = figures["us_per_token"] * options.rows / (options.step_ms * 1e3)
        figures["share_of_a_decode_step"] = round(share, 6)
        if options.json:
            print(json.dumps(figures))
        else:
            print(
                f"{variant.name:40} {figures['us_per_token']:8.2f} us/token CPU "
                f"{figures['us_per_token_wall']:8.2f} us/token wall {share:8.3%} of a step"
            )


if __name__ == "__main__":
    main()
