"""One clock for a cluster: hours of offset, delays and drift, all made up."""

import itertools
import os
from dataclasses import asdict
from typing import Any

import pytest

from tocsin.core.draw import draw_unit
from tocsin.core.faulting import OrderStatus
from tocsin.ray_jobs import clocks
from tocsin.ray_jobs.board import Board
from tocsin.ray_jobs.clocks import KEPT_NS, ClockOffset, OffsetEstimate, Translator, measured

MS = 1_000_000
S = 1_000 * MS
HOURS = 11 * 3600 * S
HERE, THERE = "boot-of-the-board", "another-boot"


class Turned:
    """A clock that is turned by hand."""

    def __init__(self, ns: int) -> None:
        self.ns = ns

    def __call__(self) -> int:
        return self.ns


def stamped(sent_ns: int, boot: str = THERE) -> dict[str, Any]:
    return {"boot": boot, "sent_ns": sent_ns}


@pytest.mark.parametrize("offset_ns", [HOURS, -HOURS, 3 * MS])
def test_the_shortest_way_is_believed(offset_ns: int) -> None:
    """Messages that took 2 to 400 ms: the estimate is within the 2 ms, on the late side."""
    estimate = OffsetEstimate()
    assert estimate.offset_ns == 0
    for n in range(200):
        sent_ns = 100 * S + n * 200 * MS
        delay_ns = 2 * MS + int(draw_unit(1, "delay", str(n)) * 400 * MS)
        estimate.hear(sent_ns, sent_ns + offset_ns + delay_ns)
    assert 0 <= estimate.offset_ns - offset_ns - 2 * MS < 5 * MS


def test_an_event_is_put_neither_before_it_was_nor_after_it_was_heard() -> None:
    """Causality holds whatever the delays: what caused it is not moved behind it."""
    now = Turned(HOURS)
    translator = Translator(HERE, now)
    for n in range(300):
        sent_ns = 5 * S + n * 50 * MS
        now.ns = sent_ns + HOURS + MS + int(draw_unit(2, "delay", str(n)) * 90 * MS)
        put_ns = sent_ns + translator.offset_ns(stamped(sent_ns))
        assert sent_ns + HOURS <= put_ns <= now.ns


@pytest.mark.parametrize("ppm", [-100, 100])
def test_a_clock_that_drifts_is_followed(ppm: int) -> None:
    """After a day at 100 ppm (8.6 s) the estimate is wrong by no more than two minutes of drift."""
    estimate = OffsetEstimate()
    for second in range(0, 86_400, 10):
        sent_ns = second * S
        estimate.hear(sent_ns, sent_ns + HOURS + sent_ns * ppm // 1_000_000 + 2 * MS)
    true_ns = HOURS + 86_400 * S * ppm // 1_000_000
    assert abs(estimate.offset_ns - true_ns) <= KEPT_NS * 100 // 1_000_000 + 4 * MS


def test_a_sender_that_was_silent_for_long_is_measured_anew() -> None:
    """What it said an hour ago counts no more."""
    estimate = OffsetEstimate()
    estimate.hear(0, HOURS)
    estimate.hear(3600 * S, 3600 * S + HOURS + 500 * MS)
    assert estimate.offset_ns == HOURS + 500 * MS


def test_on_one_host_nothing_is_changed() -> None:
    """However long a message took; and one without a stamp is of this host."""
    now = Turned(100 * S)
    translator = Translator(HERE, now)
    assert translator.offset_ns(stamped(100 * S, HERE)) == 0
    assert translator.offset_ns(stamped(70 * S, HERE)) == 0
    assert translator.offset_ns(None) == 0
    event = {"t_ns": 5, "data": {"occurrence": "a@1", "fired_ns": 4}}
    assert translator.event(event, 0) is event


def test_one_boot_with_two_clocks_is_noticed() -> None:
    """A time namespace, or two hosts that tell no boot at all."""
    now = Turned(100 * S)
    translator = Translator(HERE, now)
    assert translator.offset_ns(stamped(100 * S + HOURS, HERE)) == -HOURS
    translator = Translator("", now)
    assert translator.offset_ns(stamped(100 * S - HOURS, "")) == HOURS


def test_an_order_s_own_times_are_translated_with_it() -> None:
    """What has not happened stays so."""
    translator = Translator(HERE, Turned(0))
    status = asdict(OrderStatus("flip@1", "fired", fired_ns=7 * S, fired_step=3))
    moved = translator.event({"kind": "fault_fired", "t_ns": 8 * S, "data": status}, HOURS)
    assert moved["t_ns"] == 8 * S + HOURS
    assert moved["data"]["fired_ns"] == 7 * S + HOURS
    assert moved["data"]["healed_ns"] == 0
    assert status["fired_ns"] == 7 * S
    plain = translator.event({"t_ns": 1, "data": {"fired_ns": 5}}, HOURS)
    assert plain["data"] == {"fired_ns": 5}


def beat(sent_ns: int, *events: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "node": "elsewhere",
        "step": 1,
        "events": list(events),
        "statuses": [],
        "stamp": stamped(sent_ns),
        **changes,
    }


async def test_a_board_puts_the_events_of_every_host_on_its_own_clock() -> None:
    """Two hosts that were booted eleven hours before and after it, one story."""
    now = Turned(20 * HOURS)
    board = Board()
    board._clocks = Translator(HERE, now)
    told = {"kind": "check_failed", "replica": "a", "step": 1, "request_id": "", "data": {}}
    status = asdict(OrderStatus("flip@1", "fired", fired_ns=now.ns - HOURS - S))
    sent_ns = now.ns - HOURS - 4 * MS
    event = {**told, "t_ns": sent_ns - 10 * MS}
    await board.beat("a", beat(sent_ns, event, statuses=[status]))
    now.ns += 100 * MS
    late = {**told, "t_ns": now.ns + HOURS - 9 * MS}
    board.put_event(late, stamped(now.ns + HOURS - 5 * MS, "a-third-boot"))
    board.put_status(dict(status, occurrence="kill@1"), stamped(sent_ns + 96 * MS))
    times = [one["t_ns"] for one in board.events(0)[1] if one["kind"] == "check_failed"]
    assert times == [now.ns - 110 * MS, now.ns - 4 * MS]
    assert board.statuses()["flip@1"]["fired_ns"] == now.ns - 100 * MS - S + 4 * MS
    assert board.statuses()["kill@1"]["fired_ns"] == board.statuses()["flip@1"]["fired_ns"]
    assert "stamp" not in board.replicas()["a"]


@pytest.fixture
def ticking() -> Turned:
    return Turned(50 * S)


@pytest.mark.parametrize("offset_ns", [HOURS, -HOURS])
def test_a_driver_learns_the_board_s_offset_by_the_shortest_round_trip(
    ticking: Turned, offset_ns: int
) -> None:
    """One way may be ten times as long as the other: wrong by half of that trip, and it says so."""
    trips = itertools.cycle([(40 * MS, 4 * MS), (2 * MS, 1 * MS), (90 * MS, 300 * MS)])

    def ask() -> dict[str, Any]:
        there, back = next(trips)
        ticking.ns += there
        answer = stamped(ticking.ns + offset_ns)
        ticking.ns += back
        return answer

    found = measured(ask, boot=HERE, now_ns=ticking)
    assert found.error_ns == 1_500_000
    assert abs(found.offset_ns - offset_ns) <= found.error_ns
    assert found.here_ns(ticking.ns + offset_ns) == pytest.approx(ticking.ns, abs=found.error_ns)
    assert found.here_ns(0) == 0


def test_a_driver_on_the_board_s_host_changes_nothing() -> None:
    """This process asks a board of this process."""
    assert measured(clocks.stamp) == ClockOffset(0, 0)
    assert clocks.stamp()["boot"] == clocks.boot_id() != ""
