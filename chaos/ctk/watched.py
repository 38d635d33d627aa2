"""A system under test whose orders can be followed from outside the run that gives them."""

import threading
from collections.abc import AsyncIterator, Sequence
from typing import Any

from tocsin.core.faulting import Evidence, Order, OrderStatus
from tocsin.core.history import Event, Outcome, RequestRecord
from tocsin.core.system import GoldenAnswer, LoadRequest, ReplicaInfo, System

_MALFORMED = "m-"
"""How the request of a CLIENT fault is called: this and the occurrence (chaos.load)."""


class WatchedSystem:
    """Implements `core.system.System`: passes everything on and keeps what targets say.

    Attributes:
        changed: set whenever something new is known of an occurrence.
    """

    def __init__(self, system: System) -> None:
        """Nothing is known yet."""
        self.changed = threading.Event()
        self._system = system
        self._evidence: dict[str, Evidence] = {}
        self._on: dict[str, str] = {}

    def evidence(self, occurrence: str) -> Evidence | None:
        """What its target read before and after; None: it has not fired as far as is known."""
        return self._evidence.get(occurrence)

    def replica_of(self, occurrence: str) -> str:
        """Where it was ordered last; empty: nowhere yet."""
        return self._on.get(occurrence, "")

    def describe(self) -> dict[str, Any]:
        """As the system."""
        return self._system.describe()

    def replicas(self) -> list[ReplicaInfo]:
        """As the system."""
        return self._system.replicas()

    def golden(self, prompts: Sequence[LoadRequest]) -> dict[str, GoldenAnswer]:
        """As the system."""
        return self._system.golden(prompts)

    def certificate(self) -> dict[str, Any]:
        """As the system."""
        return self._system.certificate()

    async def send(self, request: LoadRequest) -> AsyncIterator[RequestRecord]:
        """As the system; the answer to a malformed request is the evidence that it was sent."""
        records = self._system.send(request)
        try:
            async for record in records:
                yield record
                if request.malformed and record.outcome not in (Outcome.OPEN, Outcome.INFO):
                    self._note(request.request_id.removeprefix(_MALFORMED), _answered(record))
        finally:
            close = getattr(records, "aclose", None)
            if close is not None:
                await close()

    def arm(self, replica: str, order: Order) -> None:
        """As the system."""
        self._on[order.occurrence] = replica
        self._system.arm(replica, order)

    def strike(self, replica: str, order: Order) -> None:
        """As the system."""
        self._on[order.occurrence] = replica
        self._system.strike(replica, order)

    def renew(self, ttl_s: float) -> None:
        """As the system."""
        self._system.renew(ttl_s)

    def disarm(self, occurrence: str) -> None:
        """As the system."""
        self._system.disarm(occurrence)

    def orders(self) -> dict[str, OrderStatus]:
        """As the system; what fired is kept."""
        statuses = self._system.orders()
        for name, status in statuses.items():
            if status.fired_ns and status.evidence is not None:
                self._note(name, status.evidence)
        return statuses

    def events(self, since: int) -> tuple[int, list[Event]]:
        """As the system."""
        return self._system.events(since)

    def close(self) -> None:
        """As the system."""
        self._system.close()

    def _note(self, occurrence: str, evidence: Evidence) -> None:
        if occurrence not in self._evidence:
            self._evidence[occurrence] = evidence
            self.changed.set()


def _answered(record: RequestRecord) -> Evidence:
    return Evidence(
        place=f"body of request {record.request_id} ({record.malformed})",
        before="not sent",
        after=f"answered {record.http_status} {record.error}".strip(),
        requests=(record.request_id,),
    )
