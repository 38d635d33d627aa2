"""What Alertmanager says: the body of its webhook, version 4."""

import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from tocsin.core.terms import Priority

_FAILED_BEFORE_S = 600.0
"""An alert may begin so long after the failure that is recorded in full: of an operator and check
that is the first in five minutes; then come the rule's window, its evaluation and scrapes."""


class _Foreign(BaseModel):
    """Another program's format: it may grow, so what is not known is left aside."""

    model_config = ConfigDict(extra="ignore", frozen=True, populate_by_name=True)


class AlertBody(_Foreign):
    """One alert of a notification."""

    status: Literal["firing", "resolved"]
    labels: dict[str, str]
    annotations: dict[str, str] = Field(default_factory=dict)
    starts_at: datetime.datetime = Field(alias="startsAt")
    ends_at: datetime.datetime | None = Field(default=None, alias="endsAt")
    generator_url: str = Field(default="", alias="generatorURL")
    fingerprint: str = ""

    @property
    def name(self) -> str:
        """The rule's name."""
        return self.labels.get("alertname", "unnamed")

    @property
    def priority(self) -> str:
        """P0, P1, P2 or none."""
        return self.labels.get("priority", "none")

    @property
    def operator(self) -> str:
        """Operator that fails, empty where the rule names none."""
        return self.labels.get("operator", "")

    @property
    def failure(self) -> str:
        """What `tocsin reproduce` takes: the failure's id, else the operator's latest, else ""."""
        if failure_id := self.annotations.get("failure_id", ""):
            return failure_id
        return f"latest:{self.operator}" if self.operator else ""

    @property
    def failed_since_s(self) -> float:
        """Unix time before which no failure was this alert's doing; 0 where its id is known."""
        if self.annotations.get("failure_id", ""):
            return 0.0
        return self.starts_at.timestamp() - _FAILED_BEFORE_S

    @property
    def key(self) -> str:
        """The same for every notification about one alert."""
        if self.fingerprint:
            return self.fingerprint
        return ",".join(f"{name}={value}" for name, value in sorted(self.labels.items()))

    @property
    def duration_s(self) -> float | None:
        """How long it fired, None while it does."""
        if self.status == "firing" or self.ends_at is None:
            return None
        return max(0.0, (self.ends_at - self.starts_at).total_seconds())


class Notification(_Foreign):
    """One POST: the alerts of a group."""

    version: Literal["4"]
    group_key: str = Field(default="", alias="groupKey")
    truncated_alerts: int = Field(default=0, alias="truncatedAlerts")
    status: Literal["firing", "resolved"]
    receiver: str = ""
    external_url: str = Field(default="", alias="externalURL")
    alerts: tuple[AlertBody, ...] = Field(min_length=1)

    @property
    def firing(self) -> tuple[AlertBody, ...]:
        """Alerts that fire, the gravest first."""
        return self._with("firing")

    @property
    def resolved(self) -> tuple[AlertBody, ...]:
        """Alerts that are over, the gravest first."""
        return self._with("resolved")

    @property
    def priority(self) -> str:
        """The gravest of those that fire, or of all when none does."""
        return min(alert.priority for alert in self.firing or self.alerts)

    @property
    def drill(self) -> bool:
        """Whether every alert comes from a model that is attacked on purpose."""
        return all(alert.labels.get("chaos") == "true" for alert in self.alerts)

    @property
    def pages(self) -> bool:
        """Whether somebody must be woken."""
        return bool(self.firing) and self.priority == Priority.P0

    def _with(self, status: str) -> tuple[AlertBody, ...]:
        found = [alert for alert in self.alerts if alert.status == status]
        return tuple(sorted(found, key=lambda alert: (alert.priority, alert.name, alert.operator)))
