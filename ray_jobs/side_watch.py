"""What the board notices beside the replicas: metrics, lines, spans and alerts that do not come."""

from collections.abc import Callable, Mapping
from typing import Any

SIDE = "side"
"""Whom these events are about."""
HUB_SILENT_S = 3.0
"""A hub tells the board something every second."""
_STANDS = ("T", "t", "Z", "X", "")
"""State letters (proc(5)) of a process that does not run; one that is only late is let be."""

Note = Callable[[str, str, dict[str, Any]], None]


class SideWatch:
    """Of the node where the board is: its hub's process; of every replica: what it could not write.

    Args:
        note: writes an event: kind, whom it is about, data.
        state: state letter of a process of this machine.
    """

    def __init__(self, note: Note, state: Callable[[int], str]) -> None:
        """Nothing was heard yet."""
        self._note = note
        self._state = state
        self._hub: tuple[int, float] | None = None
        self._lost = False
        self._counted: dict[tuple[str, str], int] = {}
        self._late = False

    def hub_beat(self, pid: int, now_s: float) -> None:
        """The hub of this node lives; 0: it did not say by which process."""
        self._hub = (pid, now_s) if pid else None
        if self._lost:
            self._lost = False
            self._note("metrics_back", SIDE, {"pid": pid})

    def look(self, now_s: float) -> None:
        """Whether it is silent because it does not run; told once."""
        if self._hub is None or self._lost:
            return
        pid, heard_s = self._hub
        if now_s - heard_s > HUB_SILENT_S and (state := self._state(pid)) in _STANDS:
            self._lost = True
            data = {"pid": pid, "state": state, "silent_s": round(now_s - heard_s, 3)}
            self._note("metrics_lost", SIDE, data)

    def beat(self, replica: str, counters: Mapping[str, Any], spans: Mapping[str, int]) -> None:
        """What a replica has counted; lines and spans that nobody took are told.

        Args:
            spans: `Tracing.counts`.
        """
        lines = int(counters.get("journal_dropped", 0))
        lost = int(spans.get("otlp_failed", 0)) + int(spans.get("otlp_dropped", 0))
        self._count("logs_lost", "lines", replica, lines)
        self._count("traces_lost", "spans", replica, lost)

    def delivered(self, result: str) -> None:
        """What became of one try to tell people: one of `core.metrics.DELIVERY_RESULTS`."""
        late = result != "ok"
        if late != self._late:
            self._late = late
            self._note("alerts_late" if late else "alerts_sent", SIDE, {"result": result})

    def _count(self, kind: str, what: str, replica: str, count: int) -> None:
        more = count - self._counted.get((kind, replica), 0)
        self._counted[kind, replica] = count
        if more > 0:
            self._note(kind, SIDE, {"by": replica, what: more})
