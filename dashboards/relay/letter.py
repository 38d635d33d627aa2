"""A letter: one message on its way to one receiver, as it is kept on disk until it has arrived."""

from collections import Counter
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from tocsin.core.ids import new_ulid
from tocsin.dashboards.relay.notification import Notification


class Notes(BaseModel):
    """What the relay found out about an alert before it told people.

    Attributes:
        command: what to type to see the failure again.
        path: where the reproduction lies, empty as long as it is not written.
        report: folder of the debug report, empty where there is none.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    command: str = ""
    path: str = ""
    report: str = ""


class Letter(BaseModel):
    """What is to be said; how it looks is the receiver's affair and is decided at its delivery.

    Attributes:
        about: an alert; a reproduction that came after its alert; what the rate limit held back; a
            drill that somebody asked for.
        notes: by `AlertBody.key`.
        held: for a summary: how many messages were not sent one by one, by alert name.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = Field(default_factory=new_ulid, pattern=r"^[0-9A-HJKMNP-TV-Z]{26}$")
    receiver: str
    about: Literal["alert", "reproduction", "summary", "drill"] = "alert"
    notification: Notification | None = None
    notes: dict[str, Notes] = Field(default_factory=dict)
    held: dict[str, int] = Field(default_factory=dict)
    attempts: int = 0
    accepted_s: float = 0.0
    error: str = ""

    @property
    def urgent(self) -> bool:
        """Whether it goes before all others and is never folded into a summary."""
        return self.notification is not None and self.notification.pages

    @property
    def names(self) -> Counter[str]:
        """Alert names that it speaks of, for a summary."""
        if self.held:
            return Counter(self.held)
        if self.notification is None:
            return Counter({self.about: 1})
        return Counter(sorted({alert.name for alert in self.notification.alerts}))
