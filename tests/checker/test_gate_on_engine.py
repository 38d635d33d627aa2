"""The ladder on the real engine: each kind of fault is caught in its step and changes no token."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from tocsin.checker.breaker import Breaker
from tocsin.checker.gate import GuardGate
from tocsin.checker.guard import Guard, attach
from tocsin.checker.settings import CheckerSettings
from tocsin.checker.weights import WeightStore
from tocsin.core.clock import ManualClock
from tocsin.core.history import EventKind
from tocsin.core.requests import Finish, FinishEvent, Request, Sampling, TokenEvent
from tocsin.core.terms import Action, BreakerState, Cause, Operator, Phase
from tocsin.core.verdict import Failure
from tocsin.engine.config import EngineConfig
from tocsin.engine.engine import ReferenceEngine

TOKENS = 10
FULL_STEP = 8
"""A decode step in which all requests take part."""

Build = Callable[..., nn.Module]


class Serving:
    """Three requests on a checked engine; keeps what came out and every failure."""

    def __init__(self, model: nn.Module, sink: Any, **settings: Any) -> None:
        self.model, self.sink = model, sink
        self.clock = ManualClock()
        config = EngineConfig(
            slots=4, page_size=8, pages=24, max_model_len=64, prefill_chunk=16, prefix_cache=False
        )
        self.breaker = Breaker(config.backends, clock=self.clock, sink=sink, cooldown_s=1.0)
        self.engine = ReferenceEngine(
            model, config=config, choice=self.breaker, sink=sink, clock=self.clock
        )
        self.guard: Guard = attach(
            model, settings.pop("profile", "full"), seams=self.engine.seams, clock=self.clock
        )
        self.gate = GuardGate(
            self.guard,
            self.breaker,
            WeightStore(model, tile_bytes=4096),
            pages=self.engine.pages,
            sink=sink,
            clock=self.clock,
            # The machine that runs the tests may be short of memory itself.
            settings=CheckerSettings(degrade_free_bytes=0, essential_free_bytes=0, **settings),
        )
        self.engine.gate = self.gate
        self.failures: list[Failure] = []
        settle = self.gate.settle

        def keep(attempt: Any, error: Exception | None) -> Any:
            settlement = settle(attempt, error)
            self.failures += settlement.failures
            return settlement

        self.gate.settle = keep  # type: ignore[method-assign]
        self.answers: dict[str, list[int]] = {}
        self.labels: dict[str, tuple[str, ...]] = {}
        self.finishes: dict[str, Finish] = {}
        self.unverified = 0

    def serve(self, meanwhile: Callable[[int], None] = lambda step: None) -> "Serving":
        """Submit three requests and step to their end; `meanwhile` is called before each step."""
        for number in range(3):
            prompt = tuple((11 * number + 7 * n * n + 3) % 150 + 2 for n in range(5 + 6 * number))
            self.engine.submit(Request(f"r{number}", prompt, TOKENS))
        while self.engine.has_work:
            meanwhile(self.engine.stats().step + 1)
            self.clock.sleep(0.01)
            for event in self.engine.step():
                if isinstance(event, TokenEvent):
                    self.answers.setdefault(event.request_id, []).append(event.token)
                    self.unverified += not event.verified
                elif isinstance(event, FinishEvent):
                    self.finishes[event.request_id] = event.finish
                    self.labels[event.request_id] = event.degraded
        assert self.engine.audit()["problems"] == []
        return self

    def at_step(self, operator: Operator, phase: Phase, act: Callable[[Any], bool]) -> None:
        """Let `act` at the calls of one operator from step FULL_STEP on, until it returns True."""
        done = False

        def listener(call: Any) -> None:
            nonlocal done
            if not done and self.engine.stats().step >= FULL_STEP:
                done = act(call)

        self.engine.seams.add_fault(operator, phase, listener)


@pytest.fixture
def serving(sink: Any, family_model: Build) -> Iterator[Callable[..., Serving]]:
    made: list[Serving] = []

    def make(**settings: Any) -> Serving:
        model = family_model("llama", initializer_range=0.3)
        made.append(Serving(model, sink, **settings))
        return made[-1]

    yield make
    for one in made:
        one.gate.close()
        one.guard.detach()


@pytest.fixture
def clean(serving: Callable[..., Serving], sink: Any) -> dict[str, list[int]]:
    """The answers when nothing is wrong; no check may alarm on the way."""
    quiet = serving().serve()
    assert quiet.failures == []
    assert quiet.unverified == 0
    assert set(quiet.finishes.values()) == {Finish.LENGTH}
    assert not sink.of(EventKind.CHECK_FAILED)
    assert quiet.gate.counters.checks.total() > 1000
    assert not quiet.gate.counters.skipped
    assert not quiet.gate.counters.check_errors
    return quiet.answers


def test_a_transient_nan_is_run_again(
    clean: dict[str, list[int]], serving: Callable[..., Serving]
) -> None:
    """Proves rung 1 on the engine: same bits, same tokens, no label, nothing else touched."""
    desk = serving()

    def poison(call: Any) -> bool:
        if call.depth != 1:
            return False
        call.output[1, 0, -1, 2] = math.nan
        return True

    desk.at_step(Operator.ATTENTION, Phase.AFTER, poison)
    desk.serve()
    assert desk.answers == clean
    (failure,) = desk.failures
    assert (failure.cause, failure.runs) == (Cause.TRANSIENT, 2)
    assert failure.findings[0].depth == 1
    assert failure.findings[0].operator is Operator.ATTENTION
    assert failure.request_ids == ("r1",)
    assert set(desk.labels.values()) == {()}


def test_a_bit_flip_in_a_linear_output_is_run_again(
    clean: dict[str, list[int]], serving: Callable[..., Serving]
) -> None:
    """Proves that a finite, silent change is caught by the checksum of its own linear."""
    desk = serving()

    def flip(call: Any) -> bool:
        if call.module != "model.layers.1.mlp.down_proj":
            return False
        call.output[0, -1, 7] *= 16.0
        return True

    desk.at_step(Operator.LINEAR, Phase.AFTER, flip)
    desk.serve()
    assert desk.answers == clean
    (failure,) = desk.failures
    assert failure.cause is Cause.TRANSIENT
    assert failure.findings[0].check == "numerical.linear_checksum"
    assert failure.findings[0].module == "model.layers.1.mlp.down_proj"


def test_a_kernel_that_is_wrong_for_good_is_left_for_the_fallback(
    clean: dict[str, list[int]], serving: Callable[..., Serving]
) -> None:
    """Proves rung 2 on the engine: labelled answers, breaker open after three steps."""
    desk = serving()
    wrong = {"backend": ""}

    def note(call: Any) -> bool:
        wrong["backend"] = call.backend
        return False

    def poison(call: Any) -> bool:
        if wrong["backend"] == "flash" and call.depth == 0:
            call.output[:, 0, -1, 0] = math.nan
        return False

    desk.at_step(Operator.ATTENTION, Phase.BEFORE, note)
    desk.at_step(Operator.ATTENTION, Phase.AFTER, poison)
    desk.serve()
    assert desk.breaker.state("flash") is BreakerState.OPEN
    assert {failure.cause for failure in desk.failures} == {Cause.PERSISTENT}
    assert len(desk.failures) == 3
    assert ("attention:sdpa",) in desk.labels.values()
    assert all(finish is Finish.LENGTH for finish in desk.finishes.values())
    # On this model the backends agree on the tokens; the label is what tells them apart.
    assert desk.answers == clean


def test_a_bit_flip_in_a_page_recomputes_its_holder_only(
    clean: dict[str, list[int]], serving: Callable[..., Serving], sink: Any
) -> None:
    """Proves rung 3 for pages: caught before the launch, holder replayed, neighbours untouched."""
    desk = serving()

    def flip(step: int) -> None:
        if step == FULL_STEP + 2:
            page = desk.engine.pages.table("r1")[0]
            bits = desk.engine.pages.data[page, 1, 0, 3, 5:6].view(torch.int32)
            bits ^= 1 << 30

    desk.serve(flip)
    assert desk.answers == clean
    (failure,) = desk.failures
    assert failure.cause is Cause.STATE
    assert failure.action is Action.RECOMPUTE
    assert failure.findings[0].check == "state.kv_page_sum"
    assert [event.request_id for event in sink.of(EventKind.REQUEST_RECOMPUTED)] == ["r1"]


def test_nan_in_the_unused_tail_of_a_page_is_quarantined(
    clean: dict[str, list[int]], serving: Callable[..., Serving], sink: Any
) -> None:
    """Proves finding A: the poison is found before it is mixed in, and the page is zeroed."""
    desk = serving()
    hit: list[int] = []

    def poison(step: int) -> None:
        if step == FULL_STEP:
            table = desk.engine.pages.table("r2")
            tag = desk.engine.pages.tag(table[-1])
            assert tag.length < desk.engine.pages.page_size
            hit.append(table[-1])
            desk.engine.pages.data[table[-1], :, 1, -1] = math.nan

    desk.serve(poison)
    assert desk.answers == clean
    assert torch.isfinite(desk.engine.pages.data).all()
    assert hit[0] in desk.failures[0].pages
    assert sink.of(EventKind.PAGES_QUARANTINED)


def test_a_flipped_weight_is_repaired_in_the_same_step(
    clean: dict[str, list[int]], serving: Callable[..., Serving], sink: Any
) -> None:
    """Proves rung 3 for weights: bit-identical answers, weight back, no label."""
    desk = serving()
    weight = desk.model.get_submodule("model.layers.2.mlp.up_proj").weight
    true = weight.detach().clone()

    def flip(step: int) -> None:
        if step == FULL_STEP:
            with torch.no_grad():
                weight[17, 3:4].view(torch.int32).bitwise_xor_(1 << 29)

    desk.serve(flip)
    assert desk.answers == clean
    assert torch.equal(weight, true)
    (failure,) = desk.failures
    assert failure.cause is Cause.STATE
    assert {"numerical.linear_checksum", "state.weight_sum"} <= {f.check for f in failure.findings}
    assert sink.of(EventKind.WEIGHT_REPAIRED)
    assert set(desk.labels.values()) == {()}


def test_a_weight_that_only_the_scrub_sees_recomputes_everybody(
    clean: dict[str, list[int]], serving: Callable[..., Serving], sink: Any
) -> None:
    """Proves that a flip below every tolerance is found by its sum and its traces are redone."""
    desk = serving(scrub_bytes=1 << 30)
    weight = desk.model.get_submodule("model.layers.0.self_attn.v_proj").weight
    true = weight.detach().clone()

    def flip(step: int) -> None:
        if step == FULL_STEP:
            with torch.no_grad():
                weight[3, 3:4].view(torch.int32).bitwise_xor_(1)

    desk.serve(flip)
    assert desk.answers == clean
    assert torch.equal(weight, true)
    (failure,) = desk.failures
    assert [finding.check for finding in failure.findings] == ["state.weight_sum"]
    assert failure.cause is Cause.STATE
    recomputed = {event.request_id for event in sink.of(EventKind.REQUEST_RECOMPUTED)}
    assert recomputed == {"r0", "r1", "r2"}


def test_a_changed_rotary_table_is_repaired(
    clean: dict[str, list[int]], serving: Callable[..., Serving]
) -> None:
    """Proves that the rotary frequencies are checked against their trusted copy, and repaired."""
    desk = serving()
    inv_freq = desk.model.get_submodule("model.rotary_emb").inv_freq

    def change(step: int) -> None:
        if step == FULL_STEP:
            inv_freq[1] *= 4

    desk.serve(change)
    assert desk.answers == clean
    (failure,) = desk.failures
    assert failure.cause is Cause.STATE
    assert failure.findings[0].check == "numerical.rope_table"


def test_a_token_id_out_of_range_is_never_launched(
    clean: dict[str, list[int]], serving: Callable[..., Serving]
) -> None:
    """Proves the veto: the embedding never sees the id, the rebuilt batch is served."""
    desk = serving()

    def spoil(call: Any) -> bool:
        call.input_ids[0] = 10**6
        return True

    looked_up: list[int] = []
    desk.engine.seams.add_check(
        Operator.EMBEDDING, Phase.AFTER, lambda call: looked_up.append(int(call.input_ids.max()))
    )
    desk.at_step(Operator.BATCH, Phase.BEFORE, spoil)
    desk.serve()
    assert desk.answers == clean
    assert max(looked_up) < 160
    (failure,) = desk.failures
    assert failure.cause is Cause.TRANSIENT
    assert "semantic.token_range" in {finding.check for finding in failure.findings}


def test_without_checks_the_same_nan_goes_out(
    clean: dict[str, list[int]], serving: Callable[..., Serving]
) -> None:
    """Proves that it is the checks that make the difference: the faults above are real."""
    desk = serving(profile="off")

    def flip(call: Any) -> bool:
        if call.module != "model.layers.1.mlp.down_proj":
            return False
        call.output[0, -1, :] *= -16.0
        return True

    desk.at_step(Operator.LINEAR, Phase.AFTER, flip)
    desk.serve()
    assert desk.answers != clean
    assert desk.failures == []
    assert desk.unverified == 3 * TOKENS


def test_the_guard_profile_lets_clean_answers_pass_too(
    clean: dict[str, list[int]], serving: Callable[..., Serving]
) -> None:
    """Proves that the lighter profile neither alarms nor changes anything."""
    desk = serving(profile="guard").serve()
    assert desk.answers == clean
    assert desk.failures == []
    assert desk.unverified == 0


def test_sampled_answers_raise_no_alarm(serving: Callable[..., Serving]) -> None:
    """Temperature, top-k and top-p beside a greedy row: all of it is legal, and nothing alarms."""
    sampled = serving()
    ways = (
        Sampling(),
        Sampling(temperature=0.8, seed=1),
        Sampling(temperature=1.3, top_k=5, seed=2),
        Sampling(temperature=0.7, top_p=0.9, seed=3),
    )
    for index, sampling in enumerate(ways):
        prompt = tuple(range(3 + index, 12 + index))
        sampled.engine.submit(Request(f"s{index}", prompt, TOKENS, sampling=sampling))
    while sampled.engine.has_work:
        sampled.engine.step()
    assert sampled.failures == []
    assert sampled.gate.counters.unverified_tokens == 0
