"""What an engine looks after beside its steps: lost pages, thrashing, its own pace, its clock."""

from typing import Any

import pytest

from tests.engine.tiny import CONFIG, Notes, answers, drain, endings, request, tiny_model
from tocsin.core.clock import ManualClock, OffsetClock
from tocsin.core.errors import CapacityError
from tocsin.core.history import EventKind
from tocsin.core.requests import Finish
from tocsin.core.terms import Operator, Phase, Priority
from tocsin.core.verdict import Finding
from tocsin.engine.engine import ReferenceEngine
from tocsin.engine.pace import ClockWatch, Pace, Stopwatch
from tocsin.engine.pages import PagePool
from tocsin.engine.upkeep import PAGE_AUDIT, PREEMPTION_RATE


class Told:
    """An engine that somebody listens to, and what was found beside its steps."""

    def __init__(self, *, listened: bool = True) -> None:
        self.found: list[tuple[Finding, int, tuple[int, ...]]] = []
        self.notes, self.clock = Notes(), OffsetClock(ManualClock())
        self.engine = ReferenceEngine(
            tiny_model(), config=CONFIG, sink=self.notes, clock=self.clock, replica="r"
        )
        self.engine.aside = lambda *found: self.found.append(found)
        if listened:
            self.engine.seams.add_check(Operator.KV_READ, Phase.BEFORE, lambda call: None)

    def checks(self) -> list[str]:
        return [finding.check for finding, _, _ in self.found]

    def of(self, kind: EventKind) -> list[Any]:
        return [event.data for event in self.notes.events if event.kind is kind]


@pytest.fixture(scope="module")
def leaked() -> Told:
    """Two pages are mislaid at the third step of a request of forty tokens."""
    told = Told()
    told.engine.submit(request("a", new=40))
    for _ in range(3):
        told.engine.step()
    told.engine.pages.mislay("gone", 2)
    drain(told.engine)
    told.engine.step()
    return told


def test_lost_pages_are_named_and_given_back_in_the_audits_turn(leaked: Told) -> None:
    """Once, by the 32nd step, with the pages and whom they were counted for."""
    assert leaked.checks() == [PAGE_AUDIT]
    finding, step, pages = leaked.found[0]
    assert step == CONFIG.audit_steps
    assert len(pages) == 2
    assert all(str(page) in finding.message for page in pages)
    assert "gone" in finding.message
    assert finding.priority is Priority.P1
    assert leaked.engine.audit()["problems"] == []
    assert leaked.engine.stats().pages_used == 0


def test_the_audit_at_rest_finds_what_no_step_has() -> None:
    """A short request is over before an audit's turn; the idle turn looks all the same."""
    told = Told()
    told.engine.submit(request("a", new=2))
    told.engine.step()
    told.engine.pages.mislay("gone", 1)
    drain(told.engine)
    assert told.found == []
    told.engine.step()
    assert told.checks() == [PAGE_AUDIT]
    assert told.of(EventKind.PAGE_AUDIT)[-1]["conserved"]


def test_with_checks_off_the_books_are_only_read() -> None:
    """Who switches the checks off gets what he asked for: a reading, and the leak in it."""
    told = Told(listened=False)
    told.engine.submit(request("a", new=2))
    told.engine.step()
    told.engine.pages.mislay("gone", 1)
    drain(told.engine)
    told.engine.step()
    assert told.found == []
    assert told.engine.stats().pages_used == 1


def test_nothing_is_reclaimed_that_belongs_to_somebody() -> None:
    """Waiting, running, shared, cached and quarantined pages are in the right place."""
    pool = PagePool(pages=6, depth=1, width=4, page_size=2)
    private, shared = pool.allocate("a"), pool.allocate("b")
    pool.publish("b", (1, 2), 2)
    before = pool.audit()
    assert pool.reclaim({"a", "b"}) == {}
    assert pool.audit() == before
    pool._pages[private].holders["ghost"] = None
    assert pool.reclaim({"a", "b"}) == {}  # still a's
    assert pool.audit() == before
    assert pool.reclaim({"a"}) == {shared: "b"}  # cached, and free for whoever needs it
    assert pool.audit()["conserved"]
    assert pool.counts()["cached"] == 1


@pytest.fixture(scope="module")
def storm() -> Told:
    """Eight long answers in a pool that may suddenly hand out eight pages only."""
    told = Told()
    for number in range(8):
        told.engine.submit(request(f"r{number}", length=9, new=40, start=number))
    for _ in range(16):
        told.engine.step()
    told.engine.pages.limit = 8
    while not told.found and told.engine.has_work:
        told.engine.step()
    return told


def test_more_preemptions_than_answers_are_an_alarm(storm: Told) -> None:
    """Told once, with the numbers behind it, and load is shed from then on."""
    assert storm.checks() == [PREEMPTION_RATE]
    assert storm.found[0][0].priority is Priority.P1
    assert storm.of(EventKind.LOAD_SHED)[0]["on"] is True
    for number in range(CONFIG.slots - storm.engine.stats().waiting):
        storm.engine.submit(request(f"late{number}", new=2))
    with pytest.raises(CapacityError, match="try again later"):
        storm.engine.submit(request("too many", new=2))


def test_the_storm_ends_and_every_answer_is_whole(storm: Told) -> None:
    """Only what fits to its end is admitted: nobody is preempted any more, and all come through."""
    before = storm.engine.stats().preemptions
    events = drain(storm.engine)
    assert {ending.finish for ending in endings(events).values()} == {Finish.LENGTH}
    assert storm.engine.stats().preemptions - before <= CONFIG.slots
    assert [data["on"] for data in storm.of(EventKind.LOAD_SHED)] == [True, False]
    assert answers(events)


def test_a_crowd_in_a_pool_that_is_large_enough_raises_no_alarm() -> None:
    """The nearest miss: the same requests, some preemptions, and more answers than those."""
    told = Told()
    for number in range(8):
        told.engine.submit(request(f"r{number}", length=9, new=12, start=number))
    drain(told.engine)
    assert told.checks() == []


def _slow_steps(pace: Pace, *seconds: float) -> list[bool]:
    return [pace.straggling for one in seconds if pace.took(one) or True]


def test_a_straggler_is_seen_by_its_own_past_and_not_by_one_slow_step() -> None:
    """Five slow steps of eight; fewer are nothing, and eight quick ones end it."""
    pace = Pace()
    assert not any(_slow_steps(pace, *[0.05] * 20, 0.5, 0.05, 0.5, 0.5, 0.05, 0.5, 0.05, 0.05))
    assert _slow_steps(pace, *[0.5] * 5)[-1]
    assert pace.usual_s == 0.05
    assert not _slow_steps(pace, *[0.05] * 8)[-1]


def test_a_replica_that_was_never_faster_is_no_straggler() -> None:
    """A slow machine is slow from the start; and one that stays slow is at its new pace."""
    assert not any(_slow_steps(Pace(), *[2.0] * 40))
    pace = Pace()
    states = _slow_steps(pace, *[0.05] * 16, *[0.5] * 300)
    assert states[30]
    assert not states[-1]


def test_waiting_for_a_cpu_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a step takes long, and that says nothing about the step."""
    clock = ManualClock()
    watch = Stopwatch(clock, real=True)
    waited = iter((1_000_000_000, 1_700_000_000))
    monkeypatch.setattr(Stopwatch, "_wait_ns", lambda self: next(waited))
    watch.start()
    clock.sleep(1.0)
    assert watch.stop_s() == pytest.approx(0.3)


def test_the_kernels_count_is_read_or_taken_for_none() -> None:
    """Real time: a reading that does not fall, whatever the kernel counts."""
    watch = Stopwatch(ManualClock(), real=True)
    assert 0 <= watch._wait_ns() <= watch._wait_ns()


def test_a_clock_that_is_set_or_runs_away_is_noticed_and_slewing_is_not() -> None:
    """Both directions; an NTP daemon's half a millisecond a second is none of it."""
    clock = OffsetClock(ManualClock())
    watch = ClockWatch(clock)
    assert watch.moved_s() == 0.0
    clock.sleep(10.0)
    assert watch.moved_s() == 0.0
    clock.move(-3600.0)
    assert watch.moved_s() == pytest.approx(-3600.0)
    assert watch.moved_s() == 0.0
    clock.run_at(1.0005)
    for _ in range(100):
        clock.sleep(30.0)
        assert watch.moved_s() == 0.0
    clock.run_at(2.0)
    clock.sleep(1.0)
    assert watch.moved_s() == pytest.approx(1.0, abs=0.05)
