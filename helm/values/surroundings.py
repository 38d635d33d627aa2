"""What pods are told about the world: traces, Alertmanager, further environment."""

from typing import Annotated

from pydantic import Field

from tocsin.helm.values.section import EnvName, OptionalUrl, SecretRef, Section


class TelemetryValues(Section):
    """OpenTelemetry traces."""

    enabled: bool = True
    """Traces requests; what went wrong is always kept."""
    ratio: Annotated[float, Field(ge=0, le=1)] = 0.01
    """Share of undisturbed requests whose trace is kept too."""
    endpoint: OptionalUrl = ""
    """OTLP endpoint over HTTP: http://otel-collector.monitoring:4318; empty: traces stay here."""


class AlertmanagerValues(Section):
    """Alertmanager as the relay's target."""

    url: OptionalUrl = ""
    """Address that the program itself reports failures to; empty: it does not."""


class EnvVar(Section):
    """One variable of the environment: a value, or a key of a Secret."""

    name: EnvName
    """Name of the variable."""
    value: str = ""
    """Its value, unless it comes from a Secret."""
    secret_key_ref: SecretRef = SecretRef()
    """Secret that holds the value; wins when its name is given."""
