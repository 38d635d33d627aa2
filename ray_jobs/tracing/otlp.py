"""The way to an OTLP receiver, for those who have one: an optional package, never waited for."""

import logging
from collections.abc import Sequence

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from tocsin.ray_jobs.tracing.delivery import Delivery

SPANS_MAX = 256
"""Spans that wait for the receiver: ten megabytes at most, when each is full of events."""
_TIMEOUT_S = 3.0

_LOG = logging.getLogger("tocsin.ray_jobs.tracing")


class OtlpDelivery(Delivery[ReadableSpan]):
    """Sends spans with OpenTelemetry's exporter on a thread of its own."""

    def __init__(self, exporter: SpanExporter, spans_max: int = SPANS_MAX) -> None:
        """Nothing is sent yet."""
        super().__init__(self._send, name="spans-otlp", items_max=spans_max)
        self._exporter = exporter

    def close(self, timeout_s: float) -> bool:
        """Also ends the exporter, which may be waiting to try again."""
        done = super().close(timeout_s)
        self._exporter.shutdown()
        return done

    def _send(self, spans: Sequence[ReadableSpan]) -> bool:
        return self._exporter.export(spans) is SpanExportResult.SUCCESS


def otlp_delivery() -> OtlpDelivery | None:
    """The way that the environment asks for; None, and a line in the log, without the package."""
    try:
        from opentelemetry.exporter.otlp.proto.http import Compression
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError:
        _LOG.warning(
            "traces: OTEL_EXPORTER_OTLP_ENDPOINT is set, but its exporter is not installed; spans "
            "stay in local files; pip install 'tocsin[otlp]'"
        )
        return None
    # It logs every attempt that fails; here a failure is counted, and the next one comes later.
    logging.getLogger("opentelemetry.exporter.otlp").setLevel(logging.CRITICAL)
    return OtlpDelivery(OTLPSpanExporter(timeout=_TIMEOUT_S, compression=Compression.Gzip))
