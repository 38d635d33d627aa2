"""The feed of a running gateway, and `GET /health/checker_status` which reads it too."""

import time
from collections.abc import Callable
from dataclasses import asdict
from importlib import metadata
from typing import Any

from tocsin.core.errors import CapacityError
from tocsin.ray_jobs.fleet import FleetView
from tocsin.ray_jobs.hub_client import HubClient
from tocsin.ray_jobs.live.collect import Collector
from tocsin.ray_jobs.live.feed import LiveFeed
from tocsin.ray_jobs.live.grid import fleet_profile, table
from tocsin.ray_jobs.live.reading import BoardSource
from tocsin.ray_jobs.options import ServeOptions

_OF_REPLICA = (
    *("switchboard", "breaker", "degradations", "counters", "step", "stats"),
    *("pid", "node", "ip", "host", "device", "build", "weights", "settings"),
)


class ServedFacts:
    """What is served and on what, as a driver in another pod needs it to judge the answers."""

    def __init__(self, options: ServeOptions, vocab_size: int) -> None:
        """Of one application."""
        self.profile = str(options.profile)
        self._name = options.served_name
        self._options = options.told()
        self._vocab_size = vocab_size

    def told(self, fleet: FleetView) -> dict[str, Any]:
        """Options, and the build and the weights of the replicas; JSON-safe."""
        living = list(fleet.living().values())
        options = {**self._options, "profile": fleet_profile(living, self.profile)}
        made_of = [(heard["build"], heard["weights"]) for heard in living if "build" in heard]
        build, weights = made_of[0] if made_of else (None, None)
        return {
            "name": self._name,
            "vocab_size": self._vocab_size,
            "options": {**options, "replicas": fleet.expected},
            "build": build,
            "weights": weights,
            "same_build": all(one == made_of[0] for one in made_of),
        }


def live_feed(
    options: ServeOptions,
    fleet: FleetView,
    hubs: HubClient,
    last_token: Callable[[], float | None],
    *,
    switchable: bool,
) -> LiveFeed:
    """The feed of one gateway; `run` must be started by its owner."""
    collector = Collector(
        model=options.served_name,
        profile=str(options.profile),
        version=metadata.version("tocsin"),
        replicas=options.replicas,
        switchable=switchable,
    )
    source = BoardSource(fleet, hubs, last_token, time.time)
    return LiveFeed(source, collector, now_s=time.monotonic)


async def checker_status(feed: LiveFeed, served: ServedFacts, fleet: FleetView) -> dict[str, Any]:
    """What is checked where, and what has been found: over all replicas, then for each."""
    living = fleet.living()
    body: dict[str, Any] = {
        "profile": fleet_profile(living.values(), served.profile),
        "served": served.told(fleet),
        "table": {},
        "orders": [],
    }
    try:
        state = await feed.state()
    except CapacityError:
        pass  # no board for a moment: the replicas' own words are better than nothing
    else:
        body["table"] = table(state.cells)
        for name in ("orders", "degradations", "audit"):
            body[name] = [asdict(row) for row in getattr(state, name)]
    body["replicas"] = {
        name: {key: heard.get(key) for key in _OF_REPLICA} for name, heard in living.items()
    }
    return body
