"""What happened: server-side events, and the client's record of every request."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any


class EventKind(StrEnum):
    """Kinds of server-side and nemesis events."""

    REPLICA_UP = "replica_up"
    REPLICA_DOWN = "replica_down"  # detector service.actor_down
    REPLICA_STALLED = "replica_stalled"  # detector service.heartbeat
    REPLICA_RESUMED = "replica_resumed"
    REPLICA_SLOW = "replica_slow"  # detector service.straggler; data: step_ms, usual_ms
    REPLICA_STEADY = "replica_steady"
    CLOCK_MOVED = "clock_moved"  # detector service.clock; data: seconds
    START_FAILED = "start_failed"  # detector service.start; data: error; told by who did not start
    CONTROL_DOWN = "control_down"  # detector service.control_plane; subject "cluster"
    CONTROL_UP = "control_up"
    ROAD_SLOW = "road_slow"  # detector service.latency; subject "network"
    ROAD_LOST = "road_lost"  # detector service.reachable; subject "network"
    ROAD_CLEAR = "road_clear"
    CONNECTION_BROKEN = "connection_broken"  # detector service.connection; as a client saw it
    METRICS_LOST = "metrics_lost"  # detector service.metrics; subject "side"
    METRICS_BACK = "metrics_back"
    ALERTS_LATE = "alerts_late"  # detector service.alerts; subject "side"
    ALERTS_SENT = "alerts_sent"
    TRACES_LOST = "traces_lost"  # detector service.traces; subject "side"; data: by, spans
    LOGS_LOST = "logs_lost"  # detector service.logs; subject "side"; data: by, lines
    CHECK_FAILED = "check_failed"  # one a Failure: data = the journal record
    BREAKER = "breaker"  # data: operator, backend, before, after, reason
    BACKEND_ERROR = "backend_error"  # detector service.backend_error
    PAGES_QUARANTINED = "pages_quarantined"
    WEIGHT_REPAIRED = "weight_repaired"
    REQUEST_RECOMPUTED = "request_recomputed"
    REQUEST_PREEMPTED = "request_preempted"
    LOAD_SHED = "load_shed"  # data: on; requests are preempted faster than they end
    REQUEST_RESUMED = "request_resumed"  # by the gateway, on another replica
    PROMPT_ESCAPED = "prompt_escaped"  # detector service.template; data: control_tokens
    REQUEST_REJECTED = "request_rejected"  # before admission: an explicit 4xx
    REQUEST_REFUSED = "request_refused"  # after admission: an explicit error with a failure id
    DEGRADED = "degraded"  # data: reason, on
    SWITCHED = "switched"  # the switchboard changed: the audit log
    DEGRADE_ORDERED = "degrade_ordered"  # by a person, an alert or the board: the audit log
    PAGE_AUDIT = "page_audit"  # a reading of page conservation at quiescence
    FAULT_FIRED = "fault_fired"  # data: occurrence, fault, evidence
    FAULT_HEALED = "fault_healed"
    FAULT_DISARMED = "fault_disarmed"  # the lease ran out
    HEALTH = "health"  # what the health pages said: data as `HealthReading`
    RESOURCES = "resources"  # of one replica: data when ("before", "after"), rss_bytes, fds, …
    PAGES_FREED = "pages_freed"  # of a cancelled request; data: pages, steps since the cancel
    ALERT_SENT = "alert_sent"  # data: alert, priority, route, incident, run, repro, result
    ALERT_ENDED = "alert_ended"  # data: incident
    ALERTS_UNREAD = "alerts_unread"  # nobody can say who was told what; data: why
    CLIENT_DROPPED = "client_dropped"  # by the gateway: it did not read; data: backlog_bytes
    LOGITS = "logits"  # of a sampled step; data: index, crc of the top logits, degraded


NOTICED_BY: Mapping[EventKind, str] = MappingProxyType(
    {
        EventKind.REPLICA_DOWN: "service.actor_down",
        EventKind.REPLICA_STALLED: "service.heartbeat",
        EventKind.BACKEND_ERROR: "service.backend_error",
        EventKind.REPLICA_SLOW: "service.straggler",
        EventKind.CLOCK_MOVED: "service.clock",
        EventKind.START_FAILED: "service.start",
        EventKind.CONTROL_DOWN: "service.control_plane",
        EventKind.METRICS_LOST: "service.metrics",
        EventKind.ALERTS_LATE: "service.alerts",
        EventKind.TRACES_LOST: "service.traces",
        EventKind.LOGS_LOST: "service.logs",
        EventKind.ROAD_SLOW: "service.latency",
        EventKind.ROAD_LOST: "service.reachable",
        EventKind.CONNECTION_BROKEN: "service.connection",
    }
)
"""What serving notices about itself, whoever asks, and the detector that it counts as."""
ENDED_BY: Mapping[EventKind, EventKind] = MappingProxyType(
    {
        EventKind.REPLICA_STALLED: EventKind.REPLICA_RESUMED,
        EventKind.REPLICA_SLOW: EventKind.REPLICA_STEADY,
        EventKind.CONTROL_DOWN: EventKind.CONTROL_UP,
        EventKind.METRICS_LOST: EventKind.METRICS_BACK,
        EventKind.ALERTS_LATE: EventKind.ALERTS_SENT,
        EventKind.ROAD_SLOW: EventKind.ROAD_CLEAR,
        EventKind.ROAD_LOST: EventKind.ROAD_CLEAR,
    }
)
"""Alarms that stand until they are called off, and by what."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened on the serving side.

    Attributes:
        t_ns: CLOCK_MONOTONIC nanoseconds of the machine that saw it.
        replica: id of the replica, "gateway" or "nemesis".
        step: the replica's step count, -1 where there is none.
        data: JSON-safe details; NaN and infinities as text.
    """

    kind: EventKind
    t_ns: int
    replica: str
    step: int = -1
    request_id: str = ""
    data: dict[str, Any] = field(default_factory=dict)


NO_ERROR_BODY = "no error body"
"""In place of an error's message: the server sent none."""
SHED = (429, 503)
"""HTTP statuses by which a service says that it has no room; with Retry-After, as RFC 9110 has."""


class Outcome(StrEnum):
    """How a request ended for its client; `info` means that it may have been executed."""

    OK = "ok"
    FAIL = "fail"  # an explicit rejection or refusal: no answer was given
    INFO = "info"  # timeout or broken connection: unknown
    CANCELLED = "cancelled"
    OPEN = "open"  # no terminal event at all: lost


@dataclass(slots=True)
class Chunk:
    """One token as the client received it."""

    t_ns: int
    index: int
    token: int
    text: str


@dataclass(slots=True)
class RequestRecord:
    """All that a client saw of one request; the only truth about what the user got.

    Attributes:
        prompt_id: key into the golden answers; empty for a malformed request.
        terminals: number of terminal events (end of stream, error) that arrived.
        degraded: labels of the answer (header and body agree), empty when none.
        attempts: replicas that worked on it, in order.
        retry_after: the header of that name; empty: there was none; None: nobody looked.
        replayed: it is the answer to an earlier request with the same idempotency key.
    """

    request_id: str
    prompt_id: str
    t_invoke_ns: int
    stream: bool
    max_new_tokens: int
    outcome: Outcome = Outcome.OPEN
    t_first_ns: int = 0
    t_end_ns: int = 0
    http_status: int = 0
    finish_reason: str = ""
    usage_tokens: int = -1
    chunks: list[Chunk] = field(default_factory=list)
    text: str = ""
    terminals: int = 0
    degraded: tuple[str, ...] = ()
    degraded_header: str = ""
    failure_id: str = ""
    error: str = ""
    attempts: tuple[str, ...] = ()
    malformed: str = ""
    retry_after: str | None = None
    replayed: bool = False

    @property
    def tokens(self) -> tuple[int, ...]:
        """Token ids in the order of their arrival."""
        return tuple(chunk.token for chunk in self.chunks)
