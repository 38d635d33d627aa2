"""The system under test as a chaos run sees it: Ray in earnest, one process in tests."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from tocsin.core.faulting import Order, OrderStatus
from tocsin.core.history import Event, RequestRecord


@dataclass(frozen=True, slots=True)
class ReplicaInfo:
    """One replica as last heard of.

    Attributes:
        step: its logical clock at that time.
        heard_ns: when that was (monotonic).
    """

    replica: str
    pid: int
    node: str
    alive: bool
    step: int
    heard_ns: int
    stats: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """A request that the load sends.

    Attributes:
        body: JSON body of the HTTP call; for an honest request it has `messages` or `prompt`.
        malformed: kind of malformation, empty for an honest request.
        cancel_after: cancel once this many tokens arrived; None: never.
        idempotency_key: sent in the header of that name; empty: none is.
        reads_every_s, slow_for_s: for so long the client takes so much time for each token, and
            has room for next to nothing that it has not read; then it reads the rest at once.
    """

    request_id: str
    prompt_id: str
    path: str
    body: dict[str, Any]
    stream: bool
    max_new_tokens: int
    malformed: str = ""
    cancel_after: int | None = None
    idempotency_key: str = ""
    reads_every_s: float = 0.0
    slow_for_s: float = 0.0


@dataclass(frozen=True, slots=True)
class GoldenAnswer:
    """The right answer to one prompt: by a quiet engine and, independently, by Transformers.

    Attributes:
        tokens: greedy tokens of the quiet engine.
        margins: top-1 minus top-2 logit of each.
        reference_tokens: tokens of the independent oracle.
        text: decoded answer.
        finish_reason: "stop" or "length".
        logit_crcs: crc32 of the top 64 logits of each token's step; none: they were not taken.
    """

    prompt_id: str
    tokens: tuple[int, ...]
    margins: tuple[float, ...]
    reference_tokens: tuple[int, ...]
    text: str
    finish_reason: str
    logit_crcs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class HealthReading:
    """What the health pages said at one time.

    Attributes:
        health_ok: /health says that the service is well; None: it gave no answer.
        checker_ok: /health/checker_status says that replicas serve under the profile they are
            declared with; None: it gave no answer, or there is no such page.
        status: HTTP status of /health, 0 without an answer.
    """

    health_ok: bool | None
    checker_ok: bool | None
    status: int = 0


@runtime_checkable
class TellsHealth(Protocol):
    """A system with health pages: a run reads them once a second, from a thread of its own."""

    def health(self) -> HealthReading:
        """What they say now; no answer is a reading too, and takes two seconds at most."""
        ...


@runtime_checkable
class TellsAlerts(Protocol):
    """A system whose alerts come later than what they speak of: a run waits for them at its end.

    Attributes:
        alerted_within_s: for how long at most; 0: it tells of none.
    """

    alerted_within_s: float


OBSERVED = frozenset({"health", "resources", "frees", "alerts", "logits"})
"""What a system may tell beyond its duty, named in its attribute `observes`: see `EventKind`.

health: `TellsHealth`. resources: `stats["resources"]` of its replicas, for those that the run
cannot look up itself. frees: PAGES_FREED for each cancelled request whose pages were held. alerts:
ALERT_SENT for each alert. logits: LOGITS of sampled steps, and crcs in the golden answers.
"""


class System(Protocol):
    """What a chaos run needs of the system under test."""

    def describe(self) -> dict[str, Any]:
        """JSON-safe facts for the manifest: engine, model, profile, dtype, versions, url."""
        ...

    def replicas(self) -> list[ReplicaInfo]:
        """All replicas heard of lately, in a stable order."""
        ...

    def golden(self, prompts: Sequence[LoadRequest]) -> dict[str, GoldenAnswer]:
        """Golden answers by prompt id (cached on disk by model, dtype, prompt and length)."""
        ...

    def certificate(self) -> dict[str, Any]:
        """Invariance certificate: `{"bit_exact": bool, "tau": float, "cases": …}`."""
        ...

    def send(self, request: LoadRequest) -> AsyncIterator[RequestRecord]:
        """Send one request; yields the growing record at each token and once more at its end."""
        ...

    def arm(self, replica: str, order: Order) -> None:
        """Give an in-process order to one replica."""
        ...

    def renew(self, ttl_s: float) -> None:
        """Renew the lease of every order in every replica (the controller is alive)."""
        ...

    def disarm(self, occurrence: str) -> None:
        """Take an order back and heal what it did; idempotent."""
        ...

    def orders(self) -> dict[str, OrderStatus]:
        """Status of every order given in this run, by occurrence."""
        ...

    def strike(self, replica: str, order: Order) -> None:
        """Give an order to the chaos actor of the replica's node (scope PROCESS)."""
        ...

    def events(self, since: int) -> tuple[int, list[Event]]:
        """Events from number `since` on, and the number to ask for next."""
        ...

    def close(self) -> None:
        """Stop what was started; what was joined stays."""
        ...
