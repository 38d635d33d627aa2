"""A step can be run again, undone, vetoed, recomputed and refused without leaving a trace."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch

from tests.engine.tiny import (
    CONFIG,
    Notes,
    alone,
    answers,
    drain,
    endings,
    listened,
    request,
    tiny_model,
)
from tocsin.core.calls import AttentionCall, BatchCall, KVReadCall, KVUpdateCall
from tocsin.core.errors import BackendError
from tocsin.core.protocols import StepAttempt
from tocsin.core.requests import Finish, TokenEvent
from tocsin.core.terms import Action, Cause, Layer, Operator, Phase, Priority
from tocsin.core.verdict import Failure, Finding, Settlement
from tocsin.engine.engine import ReferenceEngine
from tocsin.engine.step import Attempt

Settle = Callable[[Attempt, Exception | None], Settlement]


def release(attempt: StepAttempt) -> Settlement:
    """All rows, verified."""
    return Settlement((Action.RELEASE,) * len(attempt.request_ids))


@dataclass(slots=True)
class Scripted:
    """A gate that does as told at one step and releases at all others."""

    at_step: int
    act: Settle
    veto: bool = False
    ran: list[int] = field(default_factory=list)

    def open(self, attempt: StepAttempt) -> None:
        self.ran.append(attempt.step)

    def may_launch(self) -> bool:
        return not (self.veto and len(self.ran) == self.at_step)

    def settle(self, attempt: StepAttempt, error: Exception | None) -> Settlement:
        assert isinstance(attempt, Attempt)
        if attempt.step == self.at_step:
            return self.act(attempt, error)
        assert error is None
        return release(attempt)


def serve(
    at_step: int, act: Settle, requests: int = 2, veto: bool = False, notes: Notes | None = None
) -> tuple[ReferenceEngine, list[object]]:
    """Some requests served under a scripted gate."""
    engine = ReferenceEngine(tiny_model(), config=CONFIG, sink=notes)
    engine.gate = Scripted(at_step, act, veto)
    for n in range(requests):
        engine.submit(request(f"r{n}", 6 + n, new=10, start=n))
    return engine, list(drain(engine))


def expected(n: int) -> list[int]:
    """The quiet answer of request `rn`."""
    return alone(tiny_model(), request(f"r{n}", 6 + n, new=10, start=n))


def test_running_a_step_again_gives_the_same_bits_and_sums() -> None:
    """Logits, tokens, pages and sums after three runs are those after one."""
    seen = []

    def thrice(attempt: Attempt, error: Exception | None) -> Settlement:
        pages = attempt._parts.pool
        for _ in range(3):
            assert attempt.logits is not None
            state = (attempt.logits.clone(), pages.data.clone(), pages.sums.clone())
            seen.append((attempt.tokens(), *state))
            attempt.run()
        return release(attempt)

    engine, events = serve(6, thrice)
    assert seen[0][0] == seen[1][0] == seen[2][0]
    for one in seen[1:]:
        assert all(torch.equal(a, b) for a, b in zip(seen[0][1:], one[1:], strict=True))
    assert answers(events)["r0"] == expected(0)
    assert engine.audit()["conserved"]


def test_undo_zeroes_what_the_run_wrote_and_nothing_else() -> None:
    """The row of the step is zero with the sum of zero; the other rows keep their bits."""
    checked = []

    def undo(attempt: Attempt, error: Exception | None) -> Settlement:
        pages = attempt._parts.pool
        before = pages.data.clone()
        attempt.undo()
        position = attempt.plan.positions[0].start
        page = pages.table("r0")[position // CONFIG.page_size]
        offset = position % CONFIG.page_size
        assert before[page, :, :, offset].any()
        assert not pages.data[page, :, :, offset].any()
        assert not pages.sums[page, :, :, offset].any()
        assert torch.equal(before[page, :, :, :offset], pages.data[page, :, :, :offset])
        assert pages.verify(pages.table("r0")) == ()
        attempt.run()
        checked.append(True)
        return release(attempt)

    _, events = serve(5, undo)
    assert checked
    assert answers(events)["r1"] == expected(1)


def test_a_write_to_a_foreign_page_is_taken_back() -> None:
    """A wrong block table destroys another's row; the second run restores it, bit for bit."""
    engine = ReferenceEngine(tiny_model(), config=CONFIG)
    damaged = []

    def again(attempt: Attempt, error: Exception | None) -> Settlement:
        victim = engine.pages.table("r1")[0]
        damaged.append(engine.pages.data[victim].clone())
        attempt.run()
        assert torch.equal(engine.pages.data[victim, :, :, :6], kept[0][:, :, :6])
        assert engine.pages.verify((victim,)) == ()
        return release(attempt)

    kept: list[torch.Tensor] = []

    def alias(call: BatchCall) -> None:
        if len(kept) == 0 and engine.stats().step == 6:
            assert call.block_table is not None
            victim = engine.pages.table("r1")[0]
            kept.append(engine.pages.data[victim].clone())
            call.block_table[0, 0] = victim
            call.position_ids[0] = 2

    engine.gate = Scripted(6, again)
    engine.seams.add_fault(Operator.BATCH, Phase.BEFORE, alias)
    for n in range(2):
        engine.submit(request(f"r{n}", 6 + n, new=10, start=n))
    events = drain(engine)
    assert damaged
    assert not torch.equal(damaged[0], kept[0])
    for n in range(2):
        assert answers(events)[f"r{n}"] == expected(n)


def test_a_vetoed_launch_touches_nothing_and_releases_nothing() -> None:
    """Released all the same, its rows end with an explicit error: no token is made up."""
    seen = []

    def settle(attempt: Attempt, error: Exception | None) -> Settlement:
        seen.append((attempt.tokens(), error, attempt.logits))
        return release(attempt)

    _, events = serve(5, settle, veto=True)
    assert seen == [((-1, -1, -1, -1), None, None)]
    for ending in endings(events).values():
        assert ending.finish is Finish.ERROR
        assert "vetoed" in ending.message


def test_recompute_replays_and_repeats_no_token() -> None:
    """The request goes back to the start, its released tokens are not released again."""
    engine, events = serve(7, lambda attempt, error: Settlement((Action.RECOMPUTE,) * 4))
    for n in range(2):
        assert answers(events)[f"r{n}"] == expected(n)
        assert endings(events)[f"r{n}"].finish is Finish.LENGTH
    assert engine.audit()["conserved"]


def test_a_request_that_never_comes_clean_is_refused_in_the_end() -> None:
    """Recompute has a bound: an explicit refusal, not an endless loop."""
    engine = ReferenceEngine(tiny_model(), config=CONFIG)

    @dataclass
    class Stubborn:
        def open(self, attempt: StepAttempt) -> None:
            pass

        def may_launch(self) -> bool:
            return True

        def settle(self, attempt: StepAttempt, error: Exception | None) -> Settlement:
            return Settlement((Action.RECOMPUTE,) * len(attempt.request_ids))

    engine.gate = Stubborn()
    engine.submit(request("a"))
    events = drain(engine)
    assert endings(events)["a"].finish is Finish.REFUSED
    assert "recomputed 8 times" in endings(events)["a"].message


def test_refused_rows_carry_their_failure_id_and_others_go_on() -> None:
    """One row is refused, its neighbour does not notice."""
    failure = Failure("F1", (), ("r0",), 7, Cause.UNRESOLVED, Action.REFUSE)

    def refuse(attempt: Attempt, error: Exception | None) -> Settlement:
        actions = tuple(
            Action.REFUSE if name == "r0" else Action.RELEASE for name in attempt.request_ids
        )
        return Settlement(actions, failures=(failure,))

    notes = Notes()
    engine, events = serve(7, refuse, notes=notes)
    ending = endings(events)["r0"]
    assert (ending.finish, ending.failure_id) == (Finish.REFUSED, "F1")
    assert answers(events)["r0"] == expected(0)[: ending.tokens]
    assert answers(events)["r1"] == expected(1)
    assert engine.pages.table("r0") == ()


@pytest.mark.parametrize("action", [Action.REFUSE, Action.RECOMPUTE])
def test_what_a_step_wrote_that_is_not_released_is_zeroed(action: Action) -> None:
    """NaN of a step that is not released must not wait in a free page."""
    engine = ReferenceEngine(tiny_model(), config=CONFIG)

    def poison(call: KVUpdateCall) -> None:
        if engine.stats().step == 4:
            call.value_cache[call.slot_mapping[0] // 8, call.slot_mapping[0] % 8] = float("nan")

    engine.seams.add_fault(Operator.KV_UPDATE, Phase.AFTER, poison)
    engine.gate = Scripted(4, lambda attempt, error: Settlement((action,) * 4))
    engine.submit(request("a", 6, new=10))
    for _ in range(4):
        engine.step()
    assert engine.has_work is (action is Action.RECOMPUTE)
    assert not engine.pages.data.isnan().any()
    assert engine.pages.verify(range(CONFIG.pages + 1)) == ()


def test_quarantine_recomputes_every_holder() -> None:
    """Two requests share a prefix page that goes bad: both start over, both end right."""
    engine = listened(tiny_model())
    asked = [request(f"r{n}", 18 + n, new=8) for n in range(2)]
    right = [alone(tiny_model(), one) for one in asked]
    done: list[tuple[str, ...]] = []

    class Finder(Scripted):
        def settle(self, attempt: StepAttempt, error: Exception | None) -> Settlement:
            assert isinstance(attempt, Attempt)
            shared = engine.pages.table("r1")[:1]
            if not done and shared and len(engine.pages.tag(shared[0]).holders) == 2:
                engine.pages.data[shared[0], 0, 0, 0, 0] += 1
                assert attempt.corrupt_pages() == shared
                done.append(attempt.quarantine(shared))
                assert attempt.corrupt_pages() == ()
            return release(attempt)

    engine.gate = Finder(0, lambda attempt, error: release(attempt))
    engine.submit(asked[0])
    events = [event for _ in range(3) for event in engine.step()]
    engine.submit(asked[1])
    events += drain(engine)
    assert done == [("r0", "r1")]
    for one, tokens in zip(asked, right, strict=True):
        assert answers(events)[one.request_id] == tokens
    assert engine.audit()["conserved"]


def test_quarantine_after_the_last_run_keeps_the_neighbours_tokens() -> None:
    """Taking one request's pages does not undo what the same step wrote for others."""
    seen = []

    def contain(attempt: Attempt, error: Exception | None) -> Settlement:
        seen.append(attempt.quarantine(attempt._parts.pool.table("r0")))
        actions = tuple(
            Action.REFUSE if name == "r0" else Action.RELEASE for name in attempt.request_ids
        )
        return Settlement(actions)

    _, events = serve(7, contain)
    assert seen == [("r0",)]
    assert answers(events)["r1"] == expected(1)
    assert endings(events)["r0"].finish is Finish.REFUSED


def test_corrupt_pages_knows_wrong_tags() -> None:
    """Epoch, owner and first position are part of a page's identity."""
    found = []

    def look(attempt: Attempt, error: Exception | None) -> Settlement:
        pages = attempt._parts.pool
        (page,) = pages.table("r0")
        state = pages._pages[page]
        assert attempt.corrupt_pages() == ()
        for name, wrong in (("epoch", 99), ("owner", "r1"), ("first_position", 8)):
            before = getattr(state, name)
            setattr(state, name, wrong)
            found.append(attempt.corrupt_pages() == (page,))
            setattr(state, name, before)
        return release(attempt)

    serve(4, look)
    assert found == [True, True, True]


def test_a_failing_backend_ends_requests_with_an_error_when_nothing_checks() -> None:
    """No checks, no fallback: an explicit error for each, and the pages are clean."""
    notes = Notes()
    engine = ReferenceEngine(tiny_model(), config=CONFIG, sink=notes)

    def fail(call: AttentionCall) -> None:
        if engine.stats().step == 5 and call.depth == 1:
            raise BackendError("attention: flash failed, expected an answer; run the fallback")

    engine.seams.add_fault(Operator.ATTENTION, Phase.BEFORE, fail)
    for n in range(2):
        engine.submit(request(f"r{n}", 6, new=10, start=n))
    events = drain(engine)
    assert {ending.finish for ending in endings(events).values()} == {Finish.ERROR}
    assert all("flash failed" in ending.message for ending in endings(events).values())
    assert "backend_error" in notes.kinds()
    assert notes.kinds().count("request_refused") == 2
    assert engine.pages.verify(range(CONFIG.pages + 1)) == ()


@pytest.mark.parametrize(
    ("found", "raises", "finish"),
    [
        (None, True, Finish.ERROR),
        (Operator.DEVICE_MEMORY, True, Finish.ERROR),  # where memory is short, this is heard first
        (Operator.KV_READ, True, Finish.REFUSED),
        (None, False, Finish.REFUSED),
    ],
)
def test_a_refused_step_is_the_engines_error_only_if_it_raised_and_no_check_found_anything(
    found: Operator | None, raises: bool, finish: Finish
) -> None:
    """The one may be served by another engine; what a check refused is not tried elsewhere."""
    findings = tuple(
        Finding("a.check", one, Layer.STATE, Priority.P0, 2.0, "", (), "found", "")
        for one in (found,)
        if one is not None
    )
    failure = Failure("F1", findings, ("r0", "r1"), 7, Cause.UNRESOLVED, Action.REFUSE)

    def refuse(attempt: Attempt, error: Exception | None) -> Settlement:
        return Settlement((Action.REFUSE,) * 4, failures=(failure,))

    def fail(call: AttentionCall) -> None:
        if raises and engine.stats().step == 7:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    notes = Notes()
    engine = ReferenceEngine(tiny_model(), config=CONFIG, sink=notes)
    engine.seams.add_fault(Operator.ATTENTION, Phase.BEFORE, fail)
    engine.gate = Scripted(7, refuse)
    for n in range(2):
        engine.submit(request(f"r{n}", 6 + n, new=10, start=n))
    ended = endings(drain(engine))
    assert {(one.finish, one.failure_id) for one in ended.values()} == {(finish, "F1")}
    assert ("can't allocate memory" in ended["r0"].message) is (finish is Finish.ERROR)
    assert "request_refused" not in notes.kinds()  # the gate has told it
    assert engine.pages.verify(range(CONFIG.pages + 1)) == ()


def test_a_gate_can_run_a_failed_step_on_the_fallback() -> None:
    """After the error nothing of the run stays; the second run serves from another backend."""
    engine = ReferenceEngine(tiny_model(), config=CONFIG)

    def fail(call: AttentionCall) -> None:
        if call.backend == "flash" and engine.stats().step == 5:
            raise BackendError("attention: flash failed; use the fallback")

    def fall_back(attempt: Attempt, error: Exception | None) -> Settlement:
        assert isinstance(error, BackendError)
        attempt.run("sdpa")
        assert attempt.backend == "sdpa"
        return Settlement((Action.RELEASE,) * 4, degraded=("attention:sdpa",))

    engine.seams.add_fault(Operator.ATTENTION, Phase.BEFORE, fail)
    engine.gate = Scripted(5, fall_back)
    for n in range(2):
        engine.submit(request(f"r{n}", 6 + n, new=10, start=n))
    events = drain(engine)
    for n in range(2):
        assert answers(events)[f"r{n}"] == expected(n)
        assert endings(events)[f"r{n}"].degraded == ("attention:sdpa",)
    labelled = [e.index for e in events if isinstance(e, TokenEvent) and e.degraded]
    assert labelled
    assert min(labelled) > 0


@pytest.mark.parametrize(("prefilled_on", "hits"), [("flash", 2), ("sdpa", 0)])
def test_pages_that_the_fallback_wrote_are_shared_with_nobody(prefilled_on: str, hits: int) -> None:
    """Neither in its own steps nor after the first backend is back: the bits differ unlabelled."""
    engine = ReferenceEngine(tiny_model(), config=CONFIG)

    def prefill(attempt: Attempt, error: Exception | None) -> Settlement:
        attempt.run(prefilled_on)
        fell_back = ("attention:sdpa",) if prefilled_on == "sdpa" else ()
        return Settlement((Action.RELEASE,) * 4, degraded=fell_back)

    engine.gate = gate = Scripted(1, prefill)
    for name in ("first", "second"):
        engine.submit(request(name, 20, new=5))
        drain(engine)
    assert 1 in gate.ran
    assert engine.pages.prefix_hits == hits


def test_a_replay_that_disagrees_with_the_client_is_refused() -> None:
    """Verified and different: joining the two answers would be a lie."""
    engine = ReferenceEngine(tiny_model(), config=CONFIG)
    engine.gate = Scripted(-1, lambda attempt, error: release(attempt))
    right = expected(0)
    wrong = (right[0], (right[1] + 1) % 96, right[2])
    engine.submit(request("r0", 6, new=10, start=0, delivered=wrong))
    events = drain(engine)
    ending = endings(events)["r0"]
    assert ending.finish is Finish.REFUSED
    assert f"token 1 is {right[1]}, the client holds {wrong[1]}" in ending.message
    assert not answers(events)


def test_kv_read_tells_tables_from_tags() -> None:
    """On clean steps all promises are kept; a repointed entry shows up as another page's tags."""
    engine = ReferenceEngine(tiny_model(), config=CONFIG)
    calls: list[KVReadCall] = []
    engine.seams.add_check(Operator.KV_READ, Phase.BEFORE, calls.append)
    for n in range(3):
        engine.submit(request(f"r{n}", 20, new=5, start=n // 2))
    drain(engine)
    assert calls
    for call in calls:
        assert torch.equal(call.sums, call.sums_expected)
        for name in ("owners", "epochs", "first_positions", "lengths"):
            assert torch.equal(getattr(call, name), getattr(call, f"{name}_expected")), name
    assert any((call.owners == -1).any() for call in calls)

    def repoint(call: BatchCall) -> None:
        if call.block_table is not None and {"a", "b"} <= set(call.request_ids):
            call.block_table[0, 0] = engine.pages.table("b")[0]

    engine.seams.add_fault(Operator.BATCH, Phase.BEFORE, repoint)
    for name in ("a", "b"):
        engine.submit(request(name, 6, new=4, start=ord(name)))
    calls.clear()
    for _ in range(4):
        engine.step()
    (first, *_), call = (calls[-1].entry_rows == 0).nonzero()[0], calls[-1]
    assert call.owners[first] == 1
    assert call.owners_expected[first] == 0


def test_a_wrong_token_below_the_api_is_what_the_model_sees() -> None:
    """The batch seam is real: without checks a foreign token changes the answer silently."""
    engine = ReferenceEngine(tiny_model(), config=CONFIG)

    def swap(call: BatchCall) -> None:
        if engine.stats().step == 4:
            call.input_ids[0] = (int(call.input_ids[0]) + 50) % 96

    engine.seams.add_fault(Operator.BATCH, Phase.BEFORE, swap)
    engine.submit(request("r0", 6, new=10, start=0))
    found = answers(drain(engine))["r0"]
    assert found != expected(0)
    assert len(found) == 10


@pytest.mark.parametrize("token", [96, -1])
def test_a_token_outside_the_vocabulary_ends_in_an_error(token: int) -> None:
    """The embedding raises; the step's requests end explicitly and the engine lives on."""
    engine = ReferenceEngine(tiny_model(), config=CONFIG)

    def swap(call: BatchCall) -> None:
        if engine.stats().step == 4:
            call.input_ids[0] = token

    engine.seams.add_fault(Operator.BATCH, Phase.BEFORE, swap)
    engine.submit(request("a", 6, new=10))
    assert endings(drain(engine))["a"].finish is Finish.ERROR
    engine.submit(request("r0", 6, new=10, start=0))
    assert answers(drain(engine))["r0"] == expected(0)
