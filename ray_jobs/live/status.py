"""The feed of a running gateway, and `GET /health/checker_status` which reads it too."""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib import metadata
from typing import Any

from tocsin.core.errors import CapacityError
from tocsin.ray_jobs.hub_client import HubClient
from tocsin.ray_jobs.live.collect import Collector
from tocsin.ray_jobs.live.feed import LiveFeed
from tocsin.ray_jobs.live.grid import Fleet, table
from tocsin.ray_jobs.live.reading import BoardSource
from tocsin.ray_jobs.options import ServeOptions

_OF_REPLICA = ("switchboard", "breaker", "degradations", "counters", "step", "stats")


def live_feed(
    options: ServeOptions,
    board: Any,
    hubs: HubClient,
    fleet: Callable[[], Mapping[str, Mapping[str, Any]]],
    last_token: Callable[[], float | None],
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
    source = BoardSource(board, hubs, fleet, last_token, time.time, time.monotonic_ns)
    return LiveFeed(source, collector, now_s=time.monotonic)


async def checker_status(feed: LiveFeed, profile: str, fleet: Fleet) -> dict[str, Any]:
    """What is checked where, and what has been found: over all replicas, then for each.

    Args:
        profile: what runs where no order is in force.
    """
    body: dict[str, Any] = {"profile": profile, "table": {}, "orders": []}
    try:
        state = await feed.state()
    except CapacityError:
        pass  # no board for a moment: the replicas' own words are better than nothing
    else:
        body["table"] = table(state.cells)
        for name in ("orders", "degradations", "audit"):
            body[name] = [asdict(row) for row in getattr(state, name)]
    body["replicas"] = {
        name: {key: heard.get(key) for key in _OF_REPLICA}
        for name, heard in fleet.items()
        if heard["alive"]
    }
    return body
