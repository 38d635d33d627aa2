"""Settings changed in place, between two steps of a real engine: no restart, nothing forgotten."""

import asyncio
import json
from pathlib import Path

import pytest
import torch

from tests.ray_jobs.tiny_model import save_tiny_model
from tocsin.checker.settings import CheckerSettings
from tocsin.checker.watermark import Level
from tocsin.core.calls import Call
from tocsin.core.clock import ManualClock
from tocsin.core.errors import SpecError
from tocsin.core.requests import FinishEvent, Request, TokenEvent
from tocsin.core.terms import BreakerState, Operator, Phase, Profile
from tocsin.ray_jobs.configured import parse_settings, settings_of, told
from tocsin.ray_jobs.options import ServeOptions
from tocsin.ray_jobs.stack import Stack, build
from tocsin.ray_jobs.stepper import Stepper

GUARDED = CheckerSettings(profile=Profile.GUARD)
CHECK, LIMIT = "numerical.logits_bound", "limit"


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> ServeOptions:
    torch.set_num_threads(1)
    path = save_tiny_model(tmp_path_factory.mktemp("tiny"))
    return ServeOptions(path=str(path), model="m", slots=4, pages=64, max_length=256)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(10**18)


@pytest.fixture
def stack(options: ServeOptions, clock: ManualClock, tmp_path: Path) -> Stack:
    return build(options, clock=clock, journal=tmp_path / "failures.jsonl")


def serve(stack: Stack, tokens: int = 4, name: str = "q") -> list[int]:
    stack.engine.submit(Request(name, (1, 2, 3, 4), tokens, ignore_eos=True))
    found: list[int] = []
    while stack.engine.has_work:
        found += [one.token for one in stack.engine.step() if isinstance(one, TokenEvent)]
    return found


def test_the_options_are_settings_until_a_user_config_comes(options: ServeOptions) -> None:
    """And what anybody may read of them names no archive."""
    settings = settings_of(options)
    assert (settings.profile, settings.cooldown_s) == (Profile.FULL, 5.0)
    assert "archive_url" not in told(settings)["journal"]
    assert told(settings)["profile"] == "full"


def test_a_wrong_user_config_is_one_line() -> None:
    """Unknown keys, values out of range, checks that there are not."""
    for data, found in (
        ({"profil": "off"}, "u.profil: found an unknown key"),
        ({"failures_max": 0}, "u.failures_max: found 0"),
        ({"thresholds": {"no.such": {"x": 1.0}}}, "u.thresholds: no check"),
        ([], "u: found []"),
    ):
        with pytest.raises(SpecError) as caught:
            parse_settings(data, "u")
        assert str(caught.value).startswith(found)
        assert "\n" not in str(caught.value)


def test_another_profile_is_in_force_at_the_next_step_and_back(stack: Stack) -> None:
    """Tokens stay the same, and are counted as what they are."""
    tokens = serve(stack)
    full = set(stack.gate.guard.runtime.running())
    stack.gate.apply(CheckerSettings(profile=Profile.OFF))
    assert serve(stack) == tokens
    assert stack.gate.guard.runtime.running() == ()
    assert stack.gate.counters.unverified_tokens == len(tokens)
    stack.gate.apply(CheckerSettings(profile=Profile.FULL))
    assert serve(stack) == tokens
    assert set(stack.gate.guard.runtime.running()) == full
    assert stack.gate.counters.verified_tokens == 2 * len(tokens)
    assert stack.switchboard.changes["config"] == 2


def test_another_threshold_alarms_where_the_old_one_did_not(stack: Stack) -> None:
    """And taken back it is silent again; the buffer's lines are the same ones."""
    serve(stack)
    sites = len(stack.gate.guard.runtime.sites)
    assert not stack.gate.counters.failures
    stack.gate.apply(CheckerSettings(thresholds={CHECK: {LIMIT: 1e-6}}))
    serve(stack, tokens=2)
    assert any(key[2] == CHECK for key in stack.gate.counters.failures)
    failures = sum(stack.gate.counters.failures.values())
    stack.gate.apply(CheckerSettings())
    serve(stack)
    assert sum(stack.gate.counters.failures.values()) == failures
    assert len(stack.gate.guard.runtime.sites) == sites


def test_an_unknown_threshold_changes_nothing_at_all(stack: Stack) -> None:
    """All of the settings or none of them."""
    before = stack.gate.settings
    with pytest.raises(ValueError, match="no check"):
        stack.gate.apply(CheckerSettings(profile=Profile.OFF, thresholds={"no.such": {}}))
    assert stack.gate.settings is before
    assert stack.switchboard.profile is Profile.FULL


def test_the_breaker_takes_other_limits_and_keeps_its_circuits(
    stack: Stack, clock: ManualClock
) -> None:
    """Two failures so far, two allowed now: the next one opens; the new cooldown counts."""
    breaker = stack.breaker
    breaker.failed("flash", "a test")
    stack.gate.apply(CheckerSettings(failures_max=2, cooldown_s=100.0))
    breaker.failed("flash", "a test")
    assert breaker.state("flash") is BreakerState.OPEN
    clock.sleep(60.0)
    assert breaker.choose() == "sdpa"
    stack.gate.apply(CheckerSettings(failures_max=2, cooldown_s=30.0))
    assert breaker.choose() == "flash"


def test_a_watermark_judges_the_last_reading_anew(stack: Stack) -> None:
    """Lowered below what is free, it is left at once."""
    mark = stack.gate.watermark
    mark.observe(1 << 30)
    assert mark.level is Level.DEGRADE
    assert stack.breaker.peek() == "sdpa"
    stack.gate.apply(CheckerSettings(degrade_free_bytes=1 << 20, essential_free_bytes=0))
    assert mark.level is Level.AMPLE
    assert stack.breaker.peek() == "flash"


def test_scrubbing_can_be_switched_off_and_on(stack: Stack) -> None:
    """Weight sums are checked after each step, or after none."""
    counted = []
    for scrub_bytes in (0, 1 << 20):
        stack.gate.apply(CheckerSettings(scrub_bytes=scrub_bytes))
        serve(stack)
        counts = stack.gate.counters.checks
        counted.append(sum(count for key, count in counts.items() if key[0] == "weight"))
    assert counted[0] == 0 < counted[1]


def test_the_ladder_s_bounds_are_read_anew(stack: Stack) -> None:
    """Runs of a step that never comes clean: as many as the new bound allows."""
    stack.gate.apply(CheckerSettings(runs_max=1))

    def spoil(call: Call) -> None:
        call.output.mul_(3.0)  # type: ignore[attr-defined]

    stack.engine.seams.add_fault(Operator.RMS_NORM, Phase.AFTER, spoil)
    stack.engine.submit(Request("bad", (1, 2, 3, 4), 1, ignore_eos=True))
    endings = []
    while stack.engine.has_work:
        endings += [one for one in stack.engine.step() if isinstance(one, FinishEvent)]
    assert not endings[0].finish.complete
    assert stack.gate.counters.reruns == 0


def test_the_journal_goes_on_in_its_file_with_other_limits(
    stack: Stack, clock: ManualClock
) -> None:
    """Two lines a second instead of ten, then ten again; none that was written is lost."""
    journal = stack.gate.journal

    def lines() -> int:
        assert journal.path is not None
        return len(journal.path.read_text().splitlines())

    def fail(count: int, first: int) -> None:
        for number in range(first, first + count):
            journal.write({"failure_id": f"F{number}", "operator": "rope", "code": "c"})

    fail(20, 0)
    assert lines() == 10
    stack.gate.apply(parse_settings({"journal": {"lines_per_s_max": 2, "rotate_bytes": 100_000}}))
    clock.sleep(1.5)
    fail(20, 20)
    assert lines() == 12
    stack.gate.apply(CheckerSettings())
    clock.sleep(1.5)
    fail(20, 40)
    assert lines() == 22
    assert all(json.loads(line) for line in journal.path.read_text().splitlines())  # type: ignore[union-attr]
    assert len(journal.recent()) == 60


async def test_what_is_asked_of_the_stepping_thread_is_answered_by_it(
    options: ServeOptions,
) -> None:
    """Between two steps of a running request, which goes on; an error ends nothing."""
    stepper = Stepper(lambda: build(options), lambda error: None)
    await asyncio.to_thread(stepper.ready.wait)
    request = Request("q", (1, 2, 3, 4), 12, ignore_eos=True)
    tokens = []
    async for event in stepper.generate(request):
        if isinstance(event, TokenEvent):
            tokens.append(event.token)
        if len(tokens) == 3:
            asked = stepper.ask(lambda stack: stack.gate.apply(GUARDED))
            await asyncio.wait_for(asyncio.wrap_future(asked), 10.0)
            broken = stepper.ask(lambda stack: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                await asyncio.wait_for(asyncio.wrap_future(broken), 10.0)
    assert len(tokens) == 12
    assert stepper.failed is None
    assert stepper.stack.switchboard.profile is Profile.GUARD
    stepper.stop()


async def test_who_asks_again_under_the_same_id_is_served_while_the_first_still_runs(
    options: ServeOptions,
) -> None:
    """A client that lost its connection comes back before the replica knows that it left.

    The second is not refused, and the end of the first does not end it.
    """
    stepper = Stepper(lambda: build(options), lambda error: None)
    await asyncio.to_thread(stepper.ready.wait)
    request = Request("q", (1, 2, 3, 4), 12, ignore_eos=True)

    def index_of(event: object) -> int:
        return event.index if isinstance(event, TokenEvent) else -1

    first = stepper.generate(request)
    begun = [index_of(await anext(first)) for _ in range(3)]
    again, second = stepper.open(request)
    assert again.request_id == "q#1"
    seen = [index_of(await anext(second))]
    await first.aclose()
    seen += [index_of(event) async for event in second]
    assert (begun, seen) == ([0, 1, 2], [*range(12), -1])
    assert stepper.failed is None
    for _ in range(100):
        if stepper.open(request)[0].request_id == "q":
            break
        await asyncio.sleep(0.05)
    else:
        pytest.fail("the name is never free again")
    stepper.stop()
