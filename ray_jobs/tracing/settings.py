"""What a person may set about traces: OpenTelemetry's own environment variables."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from tocsin.core.errors import SpecError

RATIO = 0.01


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """How traces are taken and where they go.

    Attributes:
        enabled: False: no request is traced.
        ratio: share of the requests whose trace is kept although nothing went wrong.
        otlp: whether spans go to an OTLP receiver as well; where it is, the exporter reads.
    """

    enabled: bool = True
    ratio: float = RATIO
    otlp: bool = False

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> "TraceSettings":
        """As OTEL_SDK_DISABLED, OTEL_TRACES_SAMPLER_ARG and OTEL_EXPORTER_OTLP_… say.

        Raises:
            SpecError: the ratio is no number from 0 to 1.
        """
        found = os.environ if environment is None else environment
        text = found.get("OTEL_TRACES_SAMPLER_ARG", "").strip()
        try:
            ratio = float(text) if text else RATIO
        except ValueError:
            ratio = -1.0
        if not 0.0 <= ratio <= 1.0:
            raise SpecError(
                f"traces: OTEL_TRACES_SAMPLER_ARG is {text!r}, expected a number from 0 to 1: the "
                "share of undisturbed requests whose trace is kept"
            )
        endpoints = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
        return cls(
            enabled=found.get("OTEL_SDK_DISABLED", "").strip().lower() != "true",
            ratio=ratio,
            otlp=any(found.get(name, "").strip() for name in endpoints),
        )
