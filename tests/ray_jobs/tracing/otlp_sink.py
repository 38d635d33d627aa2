"""An OTLP receiver in this process, and what it received."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass
class OtlpSink:
    """Spans by name, in the order of their arrival; `answer` is the status that it gives."""

    url: str = ""
    answer: int = 200
    requests: int = 0
    spans: list[Span] = field(default_factory=list)
    resources: list[dict[str, str]] = field(default_factory=list)
    arrived: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)

    def named(self, name: str) -> Span:
        return next(span for span in self.spans if span.name == name)


@contextmanager
def otlp_sink(*, answer: int = 200, hangs: bool = False) -> Iterator[OtlpSink]:
    """Serve on loopback; a sink that hangs answers only when `released` is set."""
    sink = OtlpSink(answer=answer)
    if not hangs:
        sink.released.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sink.requests += 1
            body = self.rfile.read(int(self.headers["content-length"]))
            assert self.headers["content-encoding"] == "gzip"
            assert self.path == "/v1/traces"
            request = ExportTraceServiceRequest.FromString(gzip.decompress(body))
            sink.released.wait(30.0)
            if sink.answer == 200:
                for group in request.resource_spans:
                    sink.resources.append(
                        {one.key: one.value.string_value for one in group.resource.attributes}
                    )
                    for scope in group.scope_spans:
                        sink.spans.extend(scope.spans)
            sink.arrived.set()
            try:
                self.send_response(sink.answer)
                self.end_headers()
                self.wfile.write(ExportTraceServiceResponse().SerializeToString())
            except OSError:
                return  # the client did not wait

        def log_message(self, format: str, *args: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.block_on_close = False
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    sink.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield sink
    finally:
        sink.released.set()
        server.shutdown()
        server.server_close()
        thread.join()
