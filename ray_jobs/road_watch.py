"""Whether a road is what it was: the same page asked for directly and by the road, side by side."""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import httpx

from tocsin.core.history import EventKind

_EVERY_S = 0.4
_ANSWER_S = 1.0
LATE_S = 0.25
"""So much later than the direct answer is late, twice in a row: one may be chance."""
_IN_A_ROW = 2
_PAGE = "/health"

Tell = Callable[[EventKind, Mapping[str, Any]], None]


class Judgement:
    """From pairs of times to alarms: slow, lost, clear again; each is told once."""

    def __init__(self, tell: Tell) -> None:
        """Nothing was seen yet."""
        self._tell = tell
        self._row: dict[EventKind, int] = {}
        self._told: EventKind | None = None

    def take(self, direct_s: float | None, road_s: float | None) -> None:
        """One pair.

        Args:
            direct_s, road_s: how long an answer took; None: there was none in time. Without a
                direct answer nothing is known of the road.
        """
        if direct_s is None:
            return
        found: EventKind | None = None
        if road_s is None:
            found = EventKind.ROAD_LOST
        elif road_s - direct_s > LATE_S:
            found = EventKind.ROAD_SLOW
        if found is None:
            self._row.clear()
            if self._told is not None:
                self._told = None
                self._tell(EventKind.ROAD_CLEAR, {"road_s": road_s, "direct_s": direct_s})
            return
        self._row = {found: self._row.get(found, 0) + 1}
        if self._row[found] == _IN_A_ROW and self._told is not found:
            self._told = found
            self._tell(found, {"road_s": road_s, "direct_s": direct_s})


class RoadWatch:
    """Looks at a road about twice a second, from a thread of its own, until closed."""

    def __init__(self, direct: str, road: str, tell: Tell) -> None:
        """Begin.

        Args:
            direct, road: base URLs of the same service.
        """
        timeout = httpx.Timeout(_ANSWER_S)
        self._direct = httpx.Client(base_url=direct, timeout=timeout)
        self._road = httpx.Client(base_url=road, timeout=timeout)
        self._judgement = Judgement(tell)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look_for_ever, name="road-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look no more."""
        self._ended.set()
        self._thread.join(3 * _ANSWER_S)
        self._direct.close()
        self._road.close()

    def _look_for_ever(self) -> None:
        while not self._ended.wait(_EVERY_S):
            direct_s = _took_s(self._direct)
            if direct_s is not None:
                self._judgement.take(direct_s, _took_s(self._road))


def _took_s(client: httpx.Client) -> float | None:
    """Seconds until the whole page was there; None: it was not in time.

    The timeout holds for each read, and a page in many small pieces is many reads.
    """
    began_s = time.monotonic()
    try:
        with client.stream("GET", _PAGE) as answer:
            for _ in answer.iter_raw():
                if time.monotonic() - began_s > _ANSWER_S:
                    return None
    except httpx.HTTPError:
        return None
    return time.monotonic() - began_s
