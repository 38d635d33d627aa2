"""When each replica was up, stalled or down, read from the service's own events."""

from collections import defaultdict
from collections.abc import Iterable

from tocsin.chaos.attribution import subject
from tocsin.chaos.report.model import Lane, Span
from tocsin.core.history import Event, EventKind

_STATE = {
    EventKind.REPLICA_UP: "up",
    EventKind.REPLICA_RESUMED: "up",
    EventKind.REPLICA_STALLED: "stalled",
    EventKind.REPLICA_DOWN: "down",
}
_NOT_REPLICAS = ("", "gateway", "nemesis", "client")
_LANES_MOST, _SPANS_MOST = 12, 80


def replica_lanes(events: Iterable[Event], origin_ns: int, end_s: float) -> tuple[Lane, ...]:
    """One lane a replica, those that changed state first when there are too many to show."""
    changes: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for event in sorted(events, key=lambda event: event.t_ns):
        name = subject(event)
        if name in _NOT_REPLICAS:
            continue
        history = changes[name]
        state = _STATE.get(event.kind)
        if state is not None:
            history.append(((event.t_ns - origin_ns) / 1e9, state))
    busiest = sorted(changes, key=lambda name: (-len(changes[name]), name))[:_LANES_MOST]
    return tuple(Lane(name, spans=_spans(name, changes[name], end_s)) for name in sorted(busiest))


def _spans(name: str, changes: list[tuple[float, str]], end_s: float) -> tuple[Span, ...]:
    """The longest states with their ends.

    What first stalls or dies was up before; a newcomer was not.
    """
    if not changes:
        return (Span(0.0, end_s, "up", f"{name} up: no change of state was reported"),)
    if changes[0][1] != "up":
        changes = [(0.0, "up"), *changes]
    spans: list[Span] = []
    for k, (start_s, state) in enumerate(changes):
        stop_s = changes[k + 1][0] if k + 1 < len(changes) else end_s
        if spans and spans[-1].state == state:
            start_s = spans.pop().start_s
        start_s = max(0.0, start_s)
        label = f"{name} {state}\nfrom {start_s:.2f} s to {stop_s:.2f} s"
        spans.append(Span(start_s, max(stop_s, start_s), state, label))
    if len(spans) <= _SPANS_MOST:
        return tuple(spans)
    longest = sorted(spans, key=lambda span: span.start_s - span.end_s)[:_SPANS_MOST]
    return tuple(sorted(longest, key=lambda span: span.start_s))
