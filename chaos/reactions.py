"""The reactions that an experiment may expect by name, and the events in which each shows."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from tocsin.core.history import Event, EventKind
from tocsin.core.terms import Action, Cause

Shows = Callable[[Event], bool]


def _is(*kinds: EventKind) -> Shows:
    return lambda event: event.kind in kinds


def _recomputed(event: Event) -> bool:
    return event.kind is EventKind.REQUEST_RECOMPUTED or _settled(event, "action", Action.RECOMPUTE)


def _rerun(event: Event) -> bool:
    return _settled(event, "cause", Cause.TRANSIENT) or _settled(event, "cause", Cause.PERSISTENT)


def _refused(event: Event) -> bool:
    return event.kind is EventKind.REQUEST_REFUSED or _settled(event, "action", Action.REFUSE)


def _degraded(event: Event) -> bool:
    if event.kind is EventKind.BREAKER:
        return event.data.get("after") == "open"
    on = event.data.get("on", True) is not False
    return event.kind is EventKind.DEGRADED and on


def _settled(event: Event, key: str, value: str) -> bool:
    return event.kind is EventKind.CHECK_FAILED and event.data.get(key) == value


REACTIONS: Mapping[str, Shows] = MappingProxyType(
    {
        "quarantine_kv": _is(EventKind.PAGES_QUARANTINED),
        "recompute": _recomputed,
        "rerun_step": _rerun,
        "reload_weights": _is(EventKind.WEIGHT_REPAIRED),
        "restart_actor": _is(EventKind.REPLICA_UP),
        "thaw": _is(EventKind.REPLICA_RESUMED),
        "resume": _is(EventKind.REQUEST_RESUMED),
        "abort_request": _refused,
        "degrade": _degraded,
        "preempt": _is(EventKind.REQUEST_PREEMPTED),
        "reject": _is(EventKind.REQUEST_REJECTED),
        "shed_load": _is(EventKind.REQUEST_REJECTED, EventKind.LOAD_SHED),
        "drop_client": _is(EventKind.CLIENT_DROPPED),
    }
)
"""By name; `reject` and `shed_load` show in the answers to a fault's own requests as well."""


def words(reaction: str) -> tuple[str, ...]:
    """The names in an expectation: one, or several with commas between them."""
    return tuple(name.strip() for name in reaction.split(",") if name.strip())
