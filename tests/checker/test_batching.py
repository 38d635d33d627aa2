"""Checks that wait for the end of the step say what they would have said at once."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import tocsin
from tocsin.checker import batching
from tocsin.checker.contract import registry
from tocsin.checker.forms import SoundForms, form_of
from tocsin.core.calls import KVUpdateCall, LinearCall, ResidualCall
from tocsin.core.terms import Operator, Phase

Build = Callable[..., nn.Module]
FAMILIES = ("llama", "qwen3", "gemma2", "gemma3")
IDS = torch.arange(2, 26).view(3, 8)


def findings(model: nn.Module, defer: bool, spoil: Callable[[Any], None] | None) -> Any:
    guard = tocsin.attach(model)
    guard.runtime.evaluation.collection.defer = defer
    if spoil is not None:
        for operator in (Operator.LINEAR, Operator.RMS_NORM, Operator.RESIDUAL, Operator.SWIGLU):
            guard.seams.add_fault(operator, Phase.AFTER, spoil)
    with guard.step() as step:
        model(IDS)
    verdict = step.verdict
    assert not guard.counters.check_errors
    assert not guard.counters.skipped
    guard.detach()
    return verdict


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_deferred_checks_find_the_same_at_the_same_places(
    family: str, dtype: torch.dtype, family_model: Build
) -> None:
    """Proves that stacking changes neither what is found nor where, clean or hurt."""
    model = family_model(family, dtype)
    at_once, deferred = findings(model, False, None), findings(model, True, None)
    assert at_once.ok
    assert deferred.ok
    assert deferred.checks_run == at_once.checks_run

    def spoil(call: Any) -> None:
        if call.depth == 1 and call.module.endswith(("o_proj", "input_layernorm", "mlp")):
            call.output[1, 5, ..., 3] += 40.0
        if call.depth == 2 and call.module.endswith("up_proj"):
            call.output[2, 0, 0] = math.nan

    hurt = [findings(model, defer, spoil).findings for defer in (False, True)]
    places = [[(one.check, one.module, one.rows) for one in found] for found in hurt]
    assert len(places[0]) > 3
    assert places[0] == places[1]


def test_no_clean_ratio_of_a_stack_is_near_its_limit(family_model: Build) -> None:
    """Proves room to the limit where sums run in another order than one by one."""
    model = family_model("llama", num_hidden_layers=8, hidden_size=128)
    guard = tocsin.attach(model)
    worst: dict[str, float] = {}
    for seed in range(6):
        torch.manual_seed(seed)
        with guard.step() as step:
            model(torch.randint(2, 160, (8, 6)))
        assert step.verdict.ok
        for site in guard.runtime.sites.all:
            ratio = float(guard.runtime.evaluation.buffer.data[site.index].amax())
            worst[site.unit.id] = max(worst.get(site.unit.id, 0.0), ratio)
    guard.detach()
    assert worst["numerical.linear_checksum"] > 0
    assert max(worst.values()) < 0.9, worst


def test_a_write_in_place_after_the_operator_is_noticed(family_model: Build) -> None:
    """Proves that a model which reuses activations is not judged by what it wrote later."""
    model: Any = family_model("llama")
    guard = tocsin.attach(model)
    norm = model.model.norm
    kept: list[torch.Tensor] = []
    handle = model.model.layers[1].self_attn.o_proj.register_forward_hook(
        lambda module, args, output: kept.append(output)
    )

    def write(module: nn.Module, args: Any) -> None:
        kept[-1].mul_(3.0)

    spoiler = norm.register_forward_pre_hook(write)
    with guard.step() as step:
        model(IDS)
    assert step.verdict.ok
    reasons = list(guard.counters.skipped)
    assert any("written in place" in reason for reason in reasons)
    counted = guard.counters.skipped.total()
    with guard.step() as step:
        model(IDS)
    assert step.verdict.ok
    assert guard.counters.skipped.total() == counted
    handle.remove()
    spoiler.remove()
    guard.detach()


def test_large_calls_are_checked_at_once() -> None:
    """Proves that what is bound by memory is not copied."""
    deferred = batching.Deferred()
    small, large = torch.zeros(2, 1, 8), torch.zeros(2, batching.ELEMENTS_MAX, 1)
    for x, expected in ((small, True), (large, False)):
        call = ResidualCall(module="m", rows=2, x=x, delta=x, output=x.clone())
        form = form_of(call)
        assert form is not None
        assert deferred.take(call, (), form, sound=True) is expected


def test_a_module_that_runs_twice_is_kept_twice() -> None:
    """Proves that shared layers do not overwrite each other's ratio."""
    deferred = batching.Deferred()
    for _ in range(2):
        x = torch.zeros(2, 1, 8)
        call = ResidualCall(module="shared", rows=2, x=x, delta=x, output=x.clone())
        form = form_of(call)
        assert form is not None
        assert deferred.take(call, (), form, sound=True)
    assert [len(group.calls) for group in deferred.drain()] == [1, 1]


def test_views_of_one_pool_are_stacked_without_a_copy() -> None:
    """Proves that the caches of all depths are looked at where they are."""
    pool = torch.randn(6, 4, 2, 5, 3, 8)
    views = [pool[:, depth, 0] for depth in range(1, 4)]
    stacked = batching._stack(views)
    assert torch.equal(stacked, torch.stack(views))
    assert stacked.untyped_storage().data_ptr() == pool.untyped_storage().data_ptr()
    apart = [one.clone() for one in views]
    assert torch.equal(batching._stack(apart), torch.stack(apart))
    uneven = [pool[:, 0, 0], pool[:, 1, 0], pool[:, 3, 0]]
    assert torch.equal(batching._stack(uneven), torch.stack(uneven))


def test_the_form_tells_all_metadata_and_no_value() -> None:
    """Proves that each of shape, stride, dtype and setting changes the form, a value does not."""
    base = {"x": torch.zeros(2, 3, 4), "weight": torch.zeros(5, 4), "output": torch.zeros(2, 3, 5)}

    def form(**changes: Any) -> Any:
        return form_of(LinearCall(module="m", depth=1, **{**base, **changes}))

    first = form()
    assert form(x=torch.ones(2, 3, 4)) == first
    assert form_of(LinearCall(module="other", depth=7, **base)) == first  # type: ignore[arg-type]
    for changes in (
        {"x": torch.zeros(2, 4, 3).transpose(1, 2)},
        {"x": torch.zeros(2, 3, 4, dtype=torch.float16)},
        {"weight": torch.zeros(6, 4)},
        {"bias": torch.zeros(5)},
        {"block_size": 64},
        {"rows": 2},
    ):
        assert form(**changes) != first
    expanded = torch.zeros(1).expand(2, 3, 4)  # the strides of a sparse tensor
    assert form(x=torch.zeros(2, 3, 4).to_sparse()) != form(x=expanded)


def test_sound_forms_are_bounded() -> None:
    """Proves that a service of many lengths does not collect forms for ever."""
    from tocsin.checker import forms

    known = SoundForms()
    for number in range(forms.FORMS_MAX + 1):
        known.add((number,))
    assert (forms.FORMS_MAX,) in known
    assert (0,) not in known


def test_a_wrong_form_is_found_each_time_and_never_called_sound(family_model: Build) -> None:
    """Proves that the shortcut for known forms does not swallow a broken contract."""
    model = family_model("llama")
    guard = tocsin.attach(model, "guard")

    def spoil(call: Any) -> None:
        if call.depth == 1:
            call.v = call.v[:, :, :-1]

    for _ in range(2):
        remove = guard.seams.add_fault(Operator.ATTENTION, Phase.AFTER, spoil)
        with guard.step() as step:
            model(IDS)
        found = {(one.check, one.depth) for one in step.verdict.findings}
        assert ("memory.tensor_contract", 1) in found
        assert ("state.kv_shape", 1) in found
        assert {depth for _, depth in found} == {1}
        remove()
    with guard.step() as step:
        model(IDS)
    assert step.verdict.ok
    guard.detach()


def test_every_check_that_may_wait_runs_on_a_stack(family_model: Build) -> None:
    """Proves that no check falls back to running call by call without being noticed."""
    model = family_model("llama")
    guard = tocsin.attach(model)
    with guard.step() as step:
        model(IDS)
    assert step.verdict.ok
    assert not [reason for reason in guard.counters.skipped if "call by call" in reason]
    assert guard.runtime.evaluation._alone == set()
    guard.detach()
    assert KVUpdateCall in batching._ACTIVATIONS
    assert "state.kv_page_sum" in registry()
