"""Couriers: rate, urgency, retries and dead letters, on a clock that is turned by hand."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import httpx
import pytest

from tests.dashboards.relay.stubs import alert, notification
from tocsin.core.clock import ManualClock
from tocsin.core.errors import CapacityError, SpecError
from tocsin.dashboards.relay.bucket import TokenBucket
from tocsin.dashboards.relay.channels.contract import Refusal
from tocsin.dashboards.relay.courier import BACKOFF_MAX_S, WAITING_MAX, Courier, backoff_s
from tocsin.dashboards.relay.letter import Letter
from tocsin.dashboards.relay.notification import Notification
from tocsin.dashboards.relay.spool import Spool

SECOND_NS = 1_000_000_000


class Robot:
    """Takes letters, or refuses them as it is told."""

    kind = "wecom_robot"

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.sent: list[tuple[float, Letter]] = []
        self.answer: Callable[[Letter], Refusal | None] = lambda letter: None

    def check(self) -> None:
        """Always ready."""

    async def send(self, letter: Letter, http: httpx.AsyncClient) -> Refusal | None:
        self.sent.append((self.clock.ns / 1e9, letter))
        return self.answer(letter)


class Desk:
    """A courier with everything around it."""

    def __init__(self, folder: Path, per_minute: int = 20, attempts_max: int = 6) -> None:
        self.clock = ManualClock(SECOND_NS)
        self.robot = Robot(self.clock)
        self.spool = Spool(folder)
        self.counts: list[str] = []
        self.courier = Courier(
            "robot",
            self.robot,
            self.spool,
            httpx.AsyncClient(),
            per_minute=per_minute,
            attempts_max=attempts_max,
            clock=self.clock,
            count=lambda kind, result: self.counts.append(result),
        )

    def put(self, name: str = "TocsinX", priority: str = "P1") -> Letter:
        body = Notification.model_validate(notification(alert(name, priority=priority)))
        letter = Letter(receiver="robot", notification=body)
        self.spool.keep(letter)
        self.courier.put(letter)
        return letter

    async def until_idle(self, steps_max: int = 2000) -> None:
        """Let the courier work and time pass, until nothing waits."""
        for _ in range(steps_max):
            wait_s = await self.courier.step()
            if wait_s is None:
                return
            self.clock.sleep(wait_s)
        raise AssertionError("the courier does not come to an end")


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


async def test_a_letter_that_arrives_leaves_nothing_behind(desk: Desk) -> None:
    """Counted once, off the disk, and the courier has nothing more to do."""
    desk.put()
    await desk.until_idle()
    assert desk.counts == ["ok"]
    assert desk.spool.waiting() == []
    assert desk.courier.queued == 0


async def test_no_window_of_a_minute_sees_more_than_the_limit(desk: Desk) -> None:
    """300 letters over three minutes; robots punish the 21st with minutes of silence."""
    for _ in range(300):
        desk.put()
        await desk.courier.step()
        desk.clock.sleep(0.6)
    await desk.until_idle()
    times = [time for time, _ in desk.robot.sent]
    for time in times:
        assert sum(time <= other < time + 60.0 for other in times) <= 20
    assert len(times) > 40


async def test_what_is_more_becomes_one_line_a_minute_that_counts_all_of_it(desk: Desk) -> None:
    """16 letters and one summary for the other 84; the four tokens left wait for pages."""
    for number in range(100):
        desk.put("TocsinA" if number % 2 else "TocsinB")
    await desk.until_idle()
    letters = [letter for _, letter in desk.robot.sent]
    assert [letter.about for letter in letters] == ["alert"] * 16 + ["summary"]
    assert sum(letters[-1].held.values()) == 84
    assert letters[-1].held == {"TocsinA": 42, "TocsinB": 42}
    assert desk.counts.count("rate_limited") == 84
    assert desk.counts.count("ok") == 17
    assert desk.spool.waiting() == []


async def test_a_page_overtakes_a_storm_of_tickets_and_is_never_folded_away(desk: Desk) -> None:
    """It is sent next, out of the reserve, although the minute is used up for all others."""
    for _ in range(50):
        desk.put()
    for _ in range(20):
        await desk.courier.step()
    sent = len(desk.robot.sent)
    pages = [desk.put("TocsinOperatorFailing", "P0") for _ in range(4)]
    for _ in pages:
        assert await desk.courier.step() == 0.0
    assert [letter.id for _, letter in desk.robot.sent[sent:]] == [page.id for page in pages]
    assert desk.clock.ns == SECOND_NS  # no time has passed
    await desk.until_idle()
    assert not any("TocsinOperatorFailing" in letter.held for _, letter in desk.robot.sent)


async def test_pages_beyond_the_limit_wait_and_arrive(tmp_path: Path) -> None:
    """One by one, a minute later, rather than never."""
    desk = Desk(tmp_path, per_minute=5)
    for _ in range(8):
        desk.put("TocsinOperatorFailing", "P0")
    await desk.until_idle()
    assert len(desk.robot.sent) == 8
    assert [round(time) for time, _ in desk.robot.sent] == [1] * 5 + [62] * 3


async def test_a_refusal_that_may_pass_is_tried_again_later_and_later(desk: Desk) -> None:
    """Doubled and jittered; four refusals, then it is taken."""
    answers = [Refusal("busy", retry=True)] * 4
    desk.robot.answer = lambda letter: answers.pop() if answers else None
    desk.put()
    await desk.until_idle()
    times = [time for time, _ in desk.robot.sent]
    waits = [after - before for before, after in pairwise(times)]
    assert len(times) == 5
    for number, wait in enumerate(waits):
        assert 0.5 * 2**number <= wait <= 2**number + 0.01
    assert desk.counts == ["retried"] * 4 + ["ok"]


async def test_a_letter_that_waits_for_its_next_try_holds_up_nobody(desk: Desk) -> None:
    """The one behind it is sent at once."""
    first = desk.put("TocsinBad")
    desk.robot.answer = lambda letter: (
        Refusal("busy", retry=True) if letter.id == first.id else None
    )
    second = desk.put("TocsinGood")
    await desk.courier.step()
    await desk.courier.step()
    assert [letter.id for _, letter in desk.robot.sent] == [first.id, second.id]
    assert desk.clock.ns == SECOND_NS


async def test_the_pause_that_a_receiver_asks_for_is_kept(desk: Desk) -> None:
    """Retry-After of a minute, though the backoff would be a second."""
    answers = [Refusal("HTTP 429", retry=True, after_s=60.0)]
    desk.robot.answer = lambda letter: answers.pop() if answers else None
    desk.put()
    await desk.until_idle()
    assert desk.robot.sent[1][0] - desk.robot.sent[0][0] >= 60.0


async def test_after_the_last_try_it_is_a_dead_letter_with_the_reason(tmp_path: Path) -> None:
    """With everything that is needed to send it again."""
    desk = Desk(tmp_path, attempts_max=3)
    desk.robot.answer = lambda letter: Refusal("errcode -1: busy", retry=True)
    letter = desk.put()
    await desk.until_idle()
    (dead,) = desk.spool.dead()
    assert (dead.id, dead.attempts, dead.error) == (letter.id, 3, "errcode -1: busy")
    assert dead.notification == letter.notification
    assert desk.counts == ["retried", "retried", "dead_letter"]
    assert desk.spool.waiting() == []
    assert desk.courier.dead == 1


async def test_a_refusal_that_cannot_pass_is_not_repeated(desk: Desk) -> None:
    """A wrong key stays wrong; twenty tries would use up the minute of the others."""
    desk.robot.answer = lambda letter: Refusal("errcode 93000: invalid webhook url", retry=False)
    desk.put()
    await desk.until_idle()
    assert len(desk.robot.sent) == 1
    assert desk.counts == ["dead_letter"]


async def test_a_secret_that_is_gone_for_a_moment_is_waited_for(desk: Desk) -> None:
    """It is being rotated."""
    calls = []

    def answer(letter: Letter) -> Refusal | None:
        calls.append(letter)
        if len(calls) == 1:
            raise SpecError("receivers.robot.url_file: cannot be read")
        return None

    desk.robot.answer = answer
    desk.put()
    await desk.until_idle()
    assert desk.counts == ["retried", "ok"]


async def test_a_letter_that_breaks_the_channel_does_not_end_the_courier(desk: Desk) -> None:
    """It is a dead letter, and the next one goes."""
    first = desk.put()

    def answer(letter: Letter) -> Refusal | None:
        if letter.id == first.id:
            raise RuntimeError("a bug")
        return None

    desk.robot.answer = answer
    desk.put()
    await desk.until_idle()
    assert desk.counts == ["dead_letter", "ok"]
    assert desk.spool.dead()[0].error == "RuntimeError: a bug"


async def test_what_an_ending_process_had_held_back_is_told_by_the_next_one(desk: Desk) -> None:
    """As the summary that it would have been."""
    for _ in range(20):
        desk.put()
    for _ in range(17):
        await desk.courier.step()
    desk.courier.give_up()
    (left,) = desk.spool.waiting()
    assert left.about == "summary"
    assert left.held == {"TocsinX": 4}


async def test_a_queue_without_end_is_refused(desk: Desk) -> None:
    """The letter is not lost: it is a dead one."""
    for _ in range(WAITING_MAX + 1):
        desk.courier.put(Letter(receiver="robot", about="drill"))
    assert desk.courier.queued == WAITING_MAX
    assert desk.spool.dead()[0].error == f"{WAITING_MAX} letters wait already"


def test_the_backoff_never_grows_beyond_its_limit() -> None:
    """Nor falls below half of it."""
    for attempts in range(1, 20):
        wait_s = backoff_s("x", attempts, None)
        assert min(2.0 ** (attempts - 1), BACKOFF_MAX_S) / 2 <= wait_s <= BACKOFF_MAX_S
    assert len({backoff_s(str(name), 3, None) for name in range(50)}) == 50  # jittered


def test_a_token_comes_back_a_minute_after_its_use_and_not_before() -> None:
    """A bucket that refilled evenly would let 39 through the minute after a pause."""
    clock = ManualClock()
    bucket = TokenBucket(2, clock)
    bucket.take()
    clock.sleep(30.0)
    bucket.take()
    assert bucket.left() == 0
    assert bucket.wait_s() == pytest.approx(31.0)
    with pytest.raises(ValueError, match="no token"):
        bucket.take()
    clock.sleep(31.0)
    assert bucket.left() == 1
    assert bucket.wait_s(2) == pytest.approx(30.0)


def test_dead_letters_are_dug_up_once_and_a_line_that_is_none_stays(tmp_path: Path) -> None:
    """Somebody edited the file; nothing of it is thrown away."""
    spool = Spool(tmp_path)
    letters = [Letter(receiver=name, about="drill", attempts=6, error="x") for name in "aab"]
    for letter in letters:
        spool.bury(letter)
    path = tmp_path / "dead-letters.jsonl"
    path.write_text(path.read_text() + "not a letter\n")
    taken = spool.dig_up(lambda letter: letter.receiver == "a")
    assert [(one.id, one.attempts, one.error) for one in taken] == [
        (one.id, 0, "") for one in letters[:2]
    ]
    assert [one.id for one in spool.waiting()] == sorted(one.id for one in letters[:2])
    assert [one.id for one in spool.dead()] == [letters[2].id]
    assert "not a letter" in path.read_text()
    assert spool.dig_up(lambda letter: letter.receiver == "a") == []


@pytest.mark.parametrize("end", ["\u2028", "\u2029", "\x85"])
def test_an_end_of_line_within_a_text_tears_no_dead_letter(tmp_path: Path, end: str) -> None:
    """JSON leaves these as they are; a reader of lines that takes them for ends loses the alert."""
    spool = Spool(tmp_path)
    letter = Letter(receiver="a", about="drill", attempts=6, error=f"one{end}two")
    spool.bury(letter)
    assert [one.id for one in spool.dig_up(lambda one: True)] == [letter.id]
    assert (tmp_path / "dead-letters.jsonl").read_bytes() == b""


def test_a_disk_that_takes_nothing_is_an_explicit_error(tmp_path: Path) -> None:
    """So that Alertmanager is told to send it again."""
    spool = Spool(tmp_path)
    (tmp_path / "spool").rmdir()
    with pytest.raises(CapacityError, match="takes no letter"):
        spool.keep(Letter(receiver="a", about="drill"))
