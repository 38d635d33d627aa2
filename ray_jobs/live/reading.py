"""One reading of the board and of the hubs: what the live page is made from, as it came in."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tocsin.dashboards.live.figures import Sample
from tocsin.ray_jobs.fleet import FleetView
from tocsin.ray_jobs.hub_client import HubClient
from tocsin.ray_jobs.numbers import series_of

EVENTS_MAX = 500
"""Events a reading takes; in a storm the rest is only counted."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What was heard at one moment; the dicts are those of the board.

    Attributes:
        wall_s: the gateway's clock; now_ns: the board's, as all times of events.
        fleet: last heartbeat by replica.
        events: news since the last reading; `missed` more were skipped.
        kinds: fault by occurrence, as far as the board was told.
        expected: how many replicas there should be; 0: not known.
    """

    wall_s: float
    now_ns: int
    fleet: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    events: Sequence[Mapping[str, Any]] = ()
    missed: int = 0
    statuses: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    kinds: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    degradations: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    samples: Sequence[Sample] = ()
    last_token_s: float | None = None
    expected: int = 0


class Source(Protocol):
    """Where readings come from."""

    async def read(self, wanted: frozenset[str]) -> Reading:
        """What is true now.

        Args:
            wanted: names of the metrics whose samples are needed.
        """
        ...


class BoardSource:
    """Reads the board and the hubs; implements `Source`.

    Args:
        fleet: the board and the last heartbeats, which the gateway follows anyway.
        last_token: age of the last token that left, None before the first.
    """

    def __init__(
        self,
        fleet: FleetView,
        hubs: HubClient,
        last_token: Callable[[], float | None],
        wall_s: Callable[[], float],
    ) -> None:
        """Begin with the events that are there already."""
        self._fleet = fleet
        self._hubs = hubs
        self._last_token = last_token
        self._wall_s = wall_s
        self._since = 0

    async def read(self, wanted: frozenset[str]) -> Reading:
        """One call to the board, one to each hub."""
        heard = await self._fleet.board.live.remote(self._since, EVENTS_MAX)
        self._since = heard["next"]
        numbers = await self._hubs.numbers(heard["hubs"])
        samples = [
            Sample(series.metric, series.labels, value, series.part)
            for key, value in numbers.values.items()
            if (series := series_of(key)) is not None and series.metric.name in wanted
        ]
        return Reading(
            wall_s=self._wall_s(),
            now_ns=heard["now_ns"],
            fleet=self._fleet.heard,
            events=heard["events"],
            missed=heard["missed"],
            statuses=heard["statuses"],
            kinds=heard["kinds"],
            degradations=heard["degradations"],
            samples=samples,
            last_token_s=self._last_token(),
            expected=self._fleet.expected,
        )
