"""Calls that are put down and put together: the same is found, and nothing is kept or missed."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import tocsin
from tocsin.checker.switchboard import SwitchOrder
from tocsin.core.terms import Layer, Operator, Phase, Profile
from tocsin.core.verdict import Verdict

Build = Callable[..., nn.Module]
IDS = torch.arange(2, 14).view(2, 6)


@pytest.fixture
def model(family_model: Build) -> Any:
    return family_model("llama")


@pytest.fixture
def guard(model: Any) -> Any:
    guard = tocsin.attach(model)
    yield guard
    guard.detach()


def step(guard: Any, model: Any, **inputs: Any) -> Verdict:
    with guard.step() as one:
        model(**(inputs or {"input_ids": IDS}), use_cache=False)
    verdict: Verdict = one.verdict
    return verdict


def dressed(module: nn.Module) -> bool:
    return "forward" in vars(module)


def test_what_is_known_from_other_calls_is_not_told_of(guard: Any, model: Any) -> None:
    """Proves that a layer's forward is its own again after one step, and as much is checked."""
    layer = model.model.layers[1]
    assert dressed(layer)
    told = step(guard, model)
    assert told.ok
    assert not dressed(layer)
    for _ in range(3):
        assert step(guard, model).checks_run == told.checks_run
    counts = guard.counters.checks
    assert counts["residual", "numerical", "ok"] == 4 * 2 * 3
    assert counts["swiglu", "numerical", "ok"] == 4 * 3
    assert not guard.counters.skipped


def test_a_sum_that_changes_on_its_way_is_found_at_its_place(guard: Any, model: Any) -> None:
    """Proves that the next layer's input is held to the sum that it should be, in order."""
    step(guard, model)

    def spoil(module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
        wrong = output.clone()
        wrong[1, -1, 3] += 50.0
        return wrong

    handle = model.model.layers[1].register_forward_hook(spoil)
    verdict = step(guard, model)
    handle.remove()
    first = verdict.findings[0]
    assert (first.check, first.module, first.rows) == (
        "numerical.residual",
        "model.layers.1.mlp_add",
        (1,),
    )
    assert step(guard, model).ok


def test_findings_come_in_order_of_execution(guard: Any, model: Any) -> None:
    """Proves that what is sorted at the end of a step keeps its place among what was checked."""
    step(guard, model)
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 5] += 8.0
        model.model.layers[2].self_attn.v_proj.weight[3, 5] += 8.0
        model.model.layers[0].self_attn.o_proj.weight[3, 5] += 8.0
    found = [one.module for one in step(guard, model).findings]
    assert found == [
        "model.layers.0.self_attn.o_proj",
        "model.layers.1.mlp.up_proj",
        "model.layers.2.self_attn.v_proj",
    ]


def test_a_fault_is_heard_at_every_call_while_it_is_there(guard: Any, model: Any) -> None:
    """Proves that whoever must hear a call at its time does, and that it is lean again after."""
    step(guard, model)
    heard: list[Any] = []
    for operator in (Operator.RESIDUAL, Operator.SWIGLU, Operator.LINEAR, Operator.ROPE):
        heard.clear()
        remove = guard.seams.add_fault(operator, Phase.AFTER, heard.append)
        verdict = step(guard, model)
        assert verdict.ok
        assert (
            len(heard)
            == {
                Operator.RESIDUAL: 6,
                Operator.SWIGLU: 3,
                Operator.LINEAR: 22,
                Operator.ROPE: 3,
            }[operator]
        )
        remove()
        assert step(guard, model).checks_run == verdict.checks_run
    assert not dressed(model.model.layers[1])


def test_a_fault_in_a_sum_reaches_the_model_and_is_found(guard: Any, model: Any) -> None:
    """Proves that a sum that was put together before can be struck."""
    step(guard, model)

    def strike(call: Any) -> None:
        if call.module == "model.layers.1.attention_add":
            call.output[0, -1, 2] += 40.0

    remove = guard.seams.add_fault(Operator.RESIDUAL, Phase.AFTER, strike)
    verdict = step(guard, model)
    assert verdict.findings[0].module == "model.layers.1.attention_add"
    remove()
    assert step(guard, model).ok


def test_a_write_in_place_that_begins_later_is_noticed(guard: Any, model: Any) -> None:
    """Proves that a call is not judged by what was written afterwards, and is told of again."""
    whole = step(guard, model).checks_run
    step(guard, model)
    kept: list[torch.Tensor] = []

    def write(module: nn.Module, args: Any) -> None:
        kept[-1].mul_(3.0)

    projection = model.model.layers[1].self_attn.o_proj
    hooks = [
        projection.register_forward_hook(lambda module, args, output: kept.append(output)),
        model.model.norm.register_forward_pre_hook(write),
    ]
    verdict = step(guard, model)
    assert verdict.ok
    assert any("written in place" in reason for reason in guard.counters.skipped)
    for _ in range(3):
        verdict = step(guard, model)
        assert verdict.ok
    assert verdict.checks_run >= whole - 2  # of the sum that is written over, nothing can be said
    for hook in hooks:
        hook.remove()


def test_an_input_that_is_written_before_each_step_is_no_write_in_place(
    guard: Any, model: Any
) -> None:
    """Proves that a static input buffer costs one step's check at most, and no check for good."""
    buffer = torch.zeros(2, 6, model.config.hidden_size)
    rows = model.model.embed_tokens.weight[IDS].detach()
    runs = []
    for _ in range(6):
        buffer.copy_(rows)
        verdict = step(guard, model, inputs_embeds=buffer)
        assert verdict.ok
        runs.append(verdict.checks_run)
    assert runs[-1] == runs[-2] == runs[0]


def test_a_model_that_goes_another_way_is_told_of_again(guard: Any, model: Any) -> None:
    """Proves that no sum is lost when a layer is taken out: the next step hears it."""
    step(guard, model)
    step(guard, model)
    layers = model.model.layers
    model.model.layers = layers[:2]
    model.config.num_hidden_layers = 2
    counts = []
    for _ in range(3):
        before = guard.counters.checks["residual", "numerical", "ok"]
        assert step(guard, model).ok
        counts.append(guard.counters.checks["residual", "numerical", "ok"] - before)
    assert counts[1:] == [4, 4]
    assert any("told of again" in reason for reason in guard.counters.skipped)
    model.model.layers = layers


def test_profiles_switch_without_a_call_lost(model: Any) -> None:
    """Proves that what was learnt under one profile holds under the others."""
    guard = tocsin.attach(model)
    full = step(guard, model).checks_run
    runs = {}
    for profile in ("guard", "full", "off", "full", "guard", "full"):
        guard.switchboard.set_profile(profile, "a test")
        verdict = step(guard, model)
        assert verdict.ok
        assert runs.setdefault(profile, verdict.checks_run) == verdict.checks_run
    assert runs["full"] == full
    assert 0 == runs["off"] < runs["guard"] < full
    assert not guard.counters.skipped
    guard.detach()
    assert not dressed(model.model.layers[1].mlp.down_proj)


def test_nothing_is_kept_of_a_forward_outside_a_step(guard: Any, model: Any) -> None:
    """Proves that a log at rest goes nowhere."""
    step(guard, model)
    step(guard, model)
    made: list[Any] = []
    hook = model.model.layers[1].mlp.register_forward_hook(
        lambda module, args, output: made.append(weakref.ref(output))
    )
    with torch.no_grad():
        model(IDS, use_cache=False)
    gc.collect()
    assert made[0]() is None
    step(guard, model)
    gc.collect()
    assert made[1]() is None
    hook.remove()


def test_autograd_in_a_settled_model_is_skipped_and_counted(guard: Any, model: Any) -> None:
    """Proves that what is put down is not checked behind autograd's back."""
    step(guard, model)
    step(guard, model)
    with guard.step() as one, torch.enable_grad():
        model(IDS, use_cache=False)
    assert one.verdict.ok
    assert sum(guard.counters.skipped.values()) > 20


def test_two_forwards_of_one_step_are_both_checked(guard: Any, model: Any) -> None:
    """Proves that a module's second call in a step is no line lost, small or large."""
    one = step(guard, model).checks_run
    with guard.step() as both:
        model(IDS, use_cache=False)
        model(IDS[:, :3], use_cache=False)
    assert both.verdict.ok
    assert both.verdict.checks_run == 2 * one


def test_a_layer_that_is_off_for_a_while_comes_back_at_any_step(guard: Any, model: Any) -> None:
    """Proves that a call which waits in one step may be checked at its time in the next."""
    full = [step(guard, model).checks_run for _ in range(3)][-1]
    for layer in ("numerical", "memory", "state", "semantic"):
        for _ in range(3):
            for profile in ("off", "guard", "full"):
                order = SwitchOrder(
                    layer=Layer(layer), profile=Profile(profile), ttl_s=60, reason="a test"
                )
                guard.switchboard.switch(order)
                for _ in range(3):
                    assert step(guard, model).ok
        assert step(guard, model).checks_run == full
    assert not guard.counters.skipped
