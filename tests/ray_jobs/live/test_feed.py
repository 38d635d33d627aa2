"""One reader for all who watch: bounded, and never waiting for the slowest."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import RayActorError

from tests.ray_jobs.live.readings import at, heartbeat
from tests.ray_jobs.live.test_collect import collector
from tocsin.core.errors import CapacityError
from tocsin.dashboards.live.page import SECTIONS
from tocsin.ray_jobs.fleet import FleetView
from tocsin.ray_jobs.live import feed as module
from tocsin.ray_jobs.live.feed import BEHIND_MAX, CLIENTS_MAX, LiveFeed
from tocsin.ray_jobs.live.reading import Reading
from tocsin.ray_jobs.live.status import ServedFacts, checker_status
from tocsin.ray_jobs.options import ServeOptions


class Scripted:
    """A source whose second hand is moved by its readings."""

    def __init__(self) -> None:
        self.second = 0.0
        self.broken = False
        self.nonsense = False

    def now_s(self) -> float:
        return self.second

    async def read(self, wanted: frozenset[str]) -> Reading:
        if self.broken:
            raise RayActorError
        self.second += 1.0
        fleet = {"a": {} if self.nonsense else heartbeat()}
        return at(self.second, fleet=fleet, last_token_s=0.5)


def feed_of(source: Scripted) -> LiveFeed:
    return LiveFeed(source, collector(), now_s=source.now_s)


async def close(*streams: AsyncIterator[str]) -> None:
    for stream in streams:
        await stream.aclose()  # type: ignore[attr-defined]


async def test_the_first_frame_is_whole_and_the_next_holds_what_changed() -> None:
    """The time changes every second, the failures do not."""
    source = Scripted()
    feed = feed_of(source)
    stream = feed.follow("en")
    first = json.loads(await anext(stream))
    assert set(first["sections"]) == set(SECTIONS)
    await feed.tick()
    second = json.loads(await anext(stream))
    assert "banner" in second["sections"]
    assert "failures" not in second["sections"]
    assert second["wall_s"] == first["wall_s"] + 1.0
    await close(stream)
    assert feed.watching == 0


async def test_languages_are_told_apart() -> None:
    """Two who watch in two languages."""
    feed = feed_of(Scripted())
    en, zh = feed.follow("en"), feed.follow("zh")
    assert "Nothing was switched" in await anext(en)
    assert "尚无切换记录" in await anext(zh)
    await feed.tick()
    assert "Replicas up" in await anext(en)
    assert "在线副本" in await anext(zh)
    await close(en, zh)


async def test_a_slow_client_is_let_go_and_the_others_are_not() -> None:
    """It would otherwise hold ever more frames; its browser comes back by itself."""
    feed = feed_of(Scripted())
    slow, quick = feed.follow("en"), feed.follow("en")
    await anext(slow)
    await anext(quick)
    for _ in range(BEHIND_MAX + 2):
        await feed.tick()
        await anext(quick)
    assert (feed.watching, feed.dropped) == (1, 1)
    left = [frame async for frame in slow]
    assert len(left) == BEHIND_MAX
    await close(quick)


async def test_there_is_a_most_of_streams() -> None:
    """One more is told to use the plain data; when one leaves there is room again."""
    feed = feed_of(Scripted())
    streams = [feed.follow("en") for _ in range(CLIENTS_MAX)]
    for stream in streams:
        await anext(stream)
    with pytest.raises(CapacityError, match=r"32 streams are open.*state\.json"):
        await anext(feed.follow("en"))
    await close(streams.pop())
    more = feed.follow("en")
    await anext(more)
    await close(more, *streams)


async def test_a_fresh_state_is_not_read_twice() -> None:
    """However many ask within two seconds, the board is asked once."""
    source = Scripted()
    feed = feed_of(source)
    first = await feed.state()
    assert await feed.state() is first
    source.second += 10.0
    assert (await feed.state()).wall_s > first.wall_s


async def test_without_a_board_the_old_state_stays_and_without_any_it_is_said() -> None:
    """The page shows when it was; a gateway that never read one answers 503."""
    source = Scripted()
    feed = feed_of(source)
    source.broken = True
    with pytest.raises(CapacityError, match="nothing could be read"):
        await feed.state()
    source.broken = False
    state = await feed.state()
    source.broken = True
    source.second += 10.0
    assert await feed.state() is state


async def test_nobody_watching_is_read_seldom_and_a_visitor_wakes_the_reader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pause between readings follows whether anybody watches."""
    source, pauses = Scripted(), []

    async def wait_for(waiting: Any, timeout: float) -> None:
        pauses.append(timeout)
        waiting.close()
        source.second += timeout - 1.0
        if len(pauses) == 6:
            raise asyncio.CancelledError
        raise TimeoutError

    monkeypatch.setattr(module.asyncio, "wait_for", wait_for)
    feed = feed_of(source)
    stream = feed.follow("en")
    with pytest.raises(asyncio.CancelledError):
        await feed.run()
    assert set(pauses) == {module.IDLE_S}
    pauses.clear()
    await anext(stream)
    with pytest.raises(asyncio.CancelledError):
        await feed.run()
    assert set(pauses) == {module.WATCHED_S}
    await close(stream)


async def test_one_reading_that_makes_no_sense_does_not_end_the_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A heartbeat of another version: it is counted, and the next reading is shown."""
    source = Scripted()
    feed = feed_of(source)
    stream = feed.follow("en")
    await anext(stream)
    turns = []

    async def wait_for(waiting: Any, timeout: float) -> None:
        turns.append(timeout)
        waiting.close()
        source.nonsense = len(turns) == 1
        if len(turns) == 3:
            raise asyncio.CancelledError

    monkeypatch.setattr(module.asyncio, "wait_for", wait_for)
    with pytest.raises(asyncio.CancelledError):
        await feed.run()
    assert feed.failed == 1
    assert feed.watching == 1
    await close(stream)


async def test_checker_status_is_a_table_with_orders_and_each_replica(tmp_path: Path) -> None:
    """Everything that it said before it still says."""
    source = Scripted()
    fleet = FleetView(2, board=object())
    fleet.heard = {"a": heartbeat(), "dead": heartbeat(alive=False)}
    served = ServedFacts(ServeOptions(path=str(tmp_path)), vocab_size=257)
    body = await checker_status(feed_of(source), served, fleet)
    assert body["table"]["rope"]["numerical"]["profile"] == "full"
    assert body["orders"] == []
    assert set(body["replicas"]) == {"a"}
    assert body["replicas"]["a"]["breaker"]["flash"] == "closed"
    source = Scripted()
    source.broken = True
    body = await checker_status(feed_of(source), served, fleet)
    assert body["table"] == {}
    assert set(body["replicas"]) == {"a"}
