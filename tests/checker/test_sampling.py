"""A share of the requests is checked in full; the guard profile lends out its expensive checks."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pydantic import ValidationError
from torch import nn

from tests.checker.test_gate_on_engine import Serving
from tocsin.checker.contract import registry
from tocsin.checker.counters import Counters, Rate, rates_of
from tocsin.checker.sampling import Sampler, turns_of
from tocsin.checker.settings import CheckerSettings
from tocsin.checker.switchboard import Level, Switchboard, SwitchOrder
from tocsin.core.clock import ManualClock
from tocsin.core.terms import Cause, Layer, Operator, Phase, Profile

LINEAR = (Operator.LINEAR, Layer.NUMERICAL)


def sampler(
    share: float = 0.0, rotate_steps: int = 0, seed: int = 0
) -> tuple[Sampler, Switchboard]:
    board = Switchboard(Profile.GUARD, clock=ManualClock())
    made = Sampler(board, registry(), share=share, seed=seed, rotate_steps=rotate_steps)
    return made, board


def test_a_share_of_the_requests_is_chosen_by_a_hash_of_the_id() -> None:
    """Proves the share, that it does not depend on order or process, and that the key matters."""
    one, _ = sampler(0.01)
    other, _ = sampler(0.01)
    ids = [f"request-{number}" for number in range(20_000)]
    chosen = {request for request in ids if one.samples(request)}
    assert 150 <= len(chosen) <= 250
    assert {request for request in reversed(ids) if other.samples(request)} == chosen
    assert (one.seen, one.chosen) == (20_000, len(chosen))
    keyed, _ = sampler(0.01, seed=1)
    assert len(chosen & {request for request in ids if keyed.samples(request)}) < 20


@pytest.mark.parametrize(("share", "expected"), [(0.0, False), (1.0, True)])
def test_no_share_and_all_of_it_are_exact(share: float, expected: bool) -> None:
    """Proves the ends: 0 chooses nobody, 1 everybody."""
    one, _ = sampler(share)
    assert {one.samples(str(number)) for number in range(1000)} == {expected}


def test_a_step_with_a_sampled_request_is_checked_in_full() -> None:
    """Proves that the sample is of requests: a step is full while one is in it, else guard."""
    one, board = sampler(1.0)
    revision = board.revision
    one.begin(1, ("", ""))
    assert board.revision == revision
    assert board.profile_for(*LINEAR) is Profile.GUARD
    one.begin(2, ("", "a"))
    assert board.profile_for(*LINEAR) is Profile.FULL
    one.begin(3, ("", "a"))
    assert board.revision == revision + 1  # nothing is chosen anew while nothing changes
    one.begin(4, ())
    assert board.profile_for(*LINEAR) is Profile.GUARD


def test_every_expensive_check_has_its_turn() -> None:
    """Proves the rotation: one operator and layer at a time, all of them within one round."""
    turns = turns_of(registry().values())
    one, board = sampler(rotate_steps=4)
    seen = []
    for step in range(4 * len(turns)):
        one.begin(step, ("a",))
        full = [
            (operator, layer)
            for operator in Operator
            for layer in Layer
            if board.profile_for(operator, layer) is Profile.FULL
        ]
        assert len(full) == (step % 4 == 0)  # for a quarter of its turn
        seen += full
    assert tuple(seen) == turns
    assert LINEAR in turns
    expensive = {
        (operator, unit.layer)
        for unit in registry().values()
        for operator in unit.operators
        if unit.profile_at(operator) is Profile.FULL
    }
    assert set(turns) == expensive


@pytest.mark.parametrize("profile", [Profile.FULL, Profile.OFF])
def test_where_they_decide_nothing_nothing_is_chosen_anew(profile: Profile) -> None:
    """Proves that neither sample nor turns cost anything under full and off."""
    one, board = sampler(1.0, rotate_steps=1)
    board.set_profile(profile, "a test")
    revision = board.revision
    for step in range(20):
        one.begin(step, ("a",) if step % 2 else ())
    assert board.revision == revision
    assert board.profile_for(*LINEAR) is profile


def test_an_order_of_a_person_comes_first() -> None:
    """Proves that neither sample nor turn switches on what somebody has switched off."""
    one, board = sampler(1.0, rotate_steps=1)
    order = SwitchOrder(operator=Operator.LINEAR, profile=Profile.OFF, ttl_s=60, reason="a test")
    board.switch(order)
    for step in range(40):
        one.begin(step, ("a",))
        assert board.profile_for(*LINEAR) is Profile.OFF
    board.lift(order.scope, "a test")
    assert board.profile_for(*LINEAR) is Profile.FULL
    board.set_profile(Profile.OFF, "a test")
    assert board.profile_for(*LINEAR) is Profile.OFF


def test_levels_of_operators() -> None:
    """Proves all, guard and numerical, the audit of a change, and that the sample overrides all."""
    board = Switchboard(Profile.FULL, clock=ManualClock())
    levels = {
        Operator.LINEAR: Level.GUARD,
        Operator.ROPE: Level.NUMERICAL,
        Operator.ATTENTION: Level.ALL,
    }
    board.set_levels(levels, "configured")
    revision = board.revision
    board.set_levels(levels, "configured")
    assert board.revision == revision
    assert board.profile_for(*LINEAR) is Profile.GUARD
    assert board.profile_for(Operator.ROPE, Layer.NUMERICAL) is Profile.FULL
    assert board.profile_for(Operator.ROPE, Layer.STATE) is Profile.OFF
    board.set_profile(Profile.GUARD, "a test")
    assert board.profile_for(Operator.ROPE, Layer.NUMERICAL) is Profile.GUARD
    assert board.profile_for(Operator.ATTENTION, Layer.NUMERICAL) is Profile.FULL
    assert board.profile_for(Operator.SWIGLU, Layer.NUMERICAL) is Profile.GUARD
    board.attend(True, None)
    assert board.profile_for(Operator.ROPE, Layer.STATE) is Profile.FULL
    board.set_profile(Profile.FULL, "a test")
    board.attend(True, None)  # under full the levels leave something to the sample
    assert board.profile_for(*LINEAR) is Profile.FULL
    board.attend(False, None)
    assert board.profile_for(*LINEAR) is Profile.GUARD
    board.attend(True, None)
    status = board.status()
    assert status["levels"] == {"linear": "guard", "rope": "numerical", "attention": "all"}
    assert status["sampled"] is True
    scopes = [entry["scope"] for entry in status["audit"]]
    assert scopes[:3] == ["operator:attention", "operator:linear", "operator:rope"]


def test_settings_take_a_share_in_percent() -> None:
    """Proves `sample: 1%`, and that nonsense is refused in words."""
    assert CheckerSettings.model_validate({"sample": "1%"}).sample == 0.01
    assert CheckerSettings.model_validate({"sample": 0.25}).sample == 0.25
    assert CheckerSettings.model_validate({"levels": {"rope": "all"}}).levels == {
        Operator.ROPE: Level.ALL
    }
    for wrong in ("x%", "101%", -0.1, "often"):
        with pytest.raises(ValidationError):
            CheckerSettings.model_validate({"sample": wrong})


def test_rates_are_alarms_by_evaluations() -> None:
    """Proves the exception rate of each operator: layers together, raised checks left out."""
    checks = {
        ("linear", "numerical", "ok"): 90,
        ("linear", "numerical", "alarm"): 8,
        ("linear", "memory", "alarm"): 2,
        ("linear", "memory", "error"): 50,
        ("rope", "numerical", "error"): 3,
    }
    rates = rates_of(checks)
    assert rates == {"linear": Rate(100, 10)}
    assert rates["linear"].share == 0.1
    counters = Counters()
    counters.checks.update(checks)
    assert counters.as_dict()["exception_rates"] == {"linear": 0.1}


@pytest.fixture
def desk(sink: Any, family_model: Callable[..., nn.Module]) -> Iterator[Callable[..., Serving]]:
    made: list[Serving] = []

    def make(**settings: Any) -> Serving:
        model = family_model("llama", initializer_range=0.3)
        made.append(Serving(model, sink, profile="guard", **settings))
        return made[-1]

    yield make
    for one in made:
        one.gate.close()
        one.guard.detach()


def flip(call: Any) -> bool:
    """A finite change that only an expensive check sees."""
    if call.module != "model.layers.1.mlp.down_proj":
        return False
    call.output[0, -1, 7] *= 16.0
    return True


def test_on_the_engine_the_sample_decides_who_is_looked_at_in_full(
    desk: Callable[..., Serving],
) -> None:
    """Proves end to end: unsampled steps run no checksum, sampled ones do, and see the fault."""
    plain = desk(sample=0.0, rotate_steps=0).serve()
    assert "numerical" not in {
        layer for operator, layer, _ in plain.gate.counters.checks if operator == "linear"
    }
    sampled = desk(sample=1.0, rotate_steps=0)
    sampled.at_step(Operator.LINEAR, Phase.AFTER, flip)
    sampled.serve()
    assert sampled.answers == plain.answers
    (failure,) = sampled.failures
    assert failure.cause is Cause.TRANSIENT
    assert failure.findings[0].check == "numerical.linear_checksum"
    rates = sampled.gate.counters.exception_rates()
    assert 0 < rates["linear"].share < 0.05
    assert rates["rope"].alarms == 0
    assert sampled.gate.sampler.chosen == sampled.gate.sampler.seen == 3


def test_on_the_engine_the_exception_rate_is_of_the_sample_alone(
    desk: Callable[..., Serving],
) -> None:
    """Proves alarms and evaluations by operator and layer, reruns included, of sampled steps."""
    everybody = desk(sample=1.0, rotate_steps=0)
    everybody.at_step(Operator.LINEAR, Phase.AFTER, flip)
    everybody.serve()
    counted = everybody.gate.counters
    whole = {key: count for key, count in counted.checks.items() if key[-1] != "error"}
    assert dict(counted.sampled_checks) == whole
    assert counted.sampled_checks["linear", "numerical", "alarm"] == 1
    assert desk(sample=0.0, rotate_steps=0).serve().gate.counters.sampled_checks.total() == 0


def test_only_steps_with_a_request_of_the_sample_are_counted(
    desk: Callable[..., Serving],
) -> None:
    """Proves that steps before and after a sampled one are not its own."""
    one = desk(sample=1.0, rotate_steps=0)
    settings = {step: one.gate.settings.model_copy(update={"sample": 0.0}) for step in (4,)}
    one.serve(lambda step: one.gate.apply(settings[step]) if step in settings else None)
    counted = one.gate.counters
    for layer in ("state", "semantic"):
        some = sum(n for key, n in counted.sampled_checks.items() if key[1] == layer)
        every = sum(n for key, n in counted.checks.items() if key[1] == layer)
        assert 0 < some < every, layer


def test_on_the_engine_the_guard_profile_looks_at_all_in_turn(
    desk: Callable[..., Serving],
) -> None:
    """Proves that a round of turns evaluates what guard never does, and changes no bit."""
    plain = desk(rotate_steps=0).serve()
    turning = desk(rotate_steps=1).serve()
    assert turning.answers == plain.answers
    assert turning.failures == []
    more = set(turning.gate.counters.checks) - set(plain.gate.counters.checks)
    assert {("linear", "numerical", "ok"), ("rms_norm", "numerical", "ok")} <= more
    evaluations = [desk.gate.counters.checks.total() for desk in (plain, turning)]
    assert evaluations[0] < evaluations[1] < 3 * evaluations[0]


def test_settings_can_be_changed_while_serving(desk: Callable[..., Serving]) -> None:
    """Proves `apply`: share and levels take effect with the next step."""
    one = desk(sample=0.0, rotate_steps=0)
    changed = one.gate.settings.model_copy(
        update={"sample": 1.0, "levels": {Operator.SWIGLU: Level.ALL}}
    )
    one.serve(lambda step: one.gate.apply(changed) if step == 3 else None)
    assert one.failures == []
    assert one.guard.switchboard.status()["levels"] == {"swiglu": "all"}
    assert one.gate.counters.checks["linear", "numerical", "ok"] > 0
