"""The guard: one read a step, the first failing operator first, loud about what it cannot check."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import tocsin
from tocsin.checker.contract import Check
from tocsin.checker.switchboard import Switchboard, SwitchOrder
from tocsin.core.clock import ManualClock
from tocsin.core.errors import ContractError
from tocsin.core.history import EventKind
from tocsin.core.terms import Layer, Operator, Phase, Profile

Build = Callable[..., nn.Module]
IDS = torch.arange(2, 14).view(2, 6)


@pytest.fixture
def model(family_model: Build) -> nn.Module:
    return family_model("llama")


def poison(row: int, value: float = math.nan, depth: int = 1) -> Callable[[Any], None]:
    """A fault on the attention output of one row at one depth."""

    def listener(call: Any) -> None:
        if call.depth == depth:
            call.output[row, 0, -1, 0] = value

    return listener


def test_a_clean_step_has_an_empty_verdict_with_checks_behind_it(
    model: nn.Module, fake_checks: dict[str, Check]
) -> None:
    """Proves that ok means checked: 3 attentions, 22 linears, one logits."""
    guard = tocsin.attach(model)
    with guard.step() as step:
        model(IDS)
    assert step.verdict.ok
    assert step.verdict.checks_run == 3 + 22 + 1
    counts = guard.counters.checks
    assert counts["linear", "numerical", "ok"] == 22
    assert counts["linear", "numerical", "alarm"] == 0
    guard.detach()


def test_the_first_failing_operator_is_named_first(
    model: nn.Module, fake_checks: dict[str, Check]
) -> None:
    """Proves that a NaN is reported where it began, with its rows, before where it spread."""
    guard = tocsin.attach(model)
    guard.seams.add_fault(Operator.ATTENTION, Phase.AFTER, poison(row=1))
    with guard.step() as step:
        model(IDS)
    first = step.verdict.findings[0]
    assert (first.check, first.module, first.depth) == (
        "numerical.attention",
        "model.layers.1.self_attn",
        1,
    )
    assert first.rows == (1,)
    assert math.isnan(first.ratio)
    assert first.operator is Operator.ATTENTION
    assert first.layer is Layer.NUMERICAL
    assert first.message.endswith("[numerical.attention]")
    assert step.verdict.rows() == {1}
    assert not step.verdict.whole_step()
    assert len(step.verdict.findings) > 3
    guard.detach()


def test_a_step_that_alarmed_leaves_nothing_to_the_next(
    model: nn.Module, fake_checks: dict[str, Check]
) -> None:
    """Proves that verdicts belong to one step."""
    guard = tocsin.attach(model)
    remove = guard.seams.add_fault(Operator.ATTENTION, Phase.AFTER, poison(row=0))
    with guard.step() as step:
        model(IDS)
    assert not step.verdict.ok
    remove()
    with guard.step() as step:
        model(IDS)
    assert step.verdict.ok
    guard.detach()


def test_without_any_check_the_verdict_is_vacuous(
    model: nn.Module, fake_checks: dict[str, Check]
) -> None:
    """Proves rule 6: no data is never fine."""
    guard = tocsin.attach(model, "off")
    with guard.step() as step:
        model(IDS)
    assert step.verdict.vacuous
    assert not guard.runtime.checking()
    guard.detach()


def test_the_guard_profile_runs_less_than_full(
    model: nn.Module, fake_checks: dict[str, Check]
) -> None:
    """Proves that a profile decides which checks listen, and that the linears are then not
    even announced."""
    guard = tocsin.attach(model, "guard")
    assert not guard.seams.wanted(Operator.LINEAR)
    with guard.step() as step:
        model(IDS)
    assert step.verdict.checks_run == 3 + 1
    guard.detach()


def test_a_switch_takes_effect_at_the_next_step_and_returns_by_itself(
    model: nn.Module, fake_checks: dict[str, Check], sink: Any
) -> None:
    """Proves the switchboard: an operator's override, its end by the clock, the audit log."""
    clock = ManualClock()
    board = Switchboard("full", clock=clock, sink=sink)
    guard = tocsin.attach(model, switchboard=board)

    def checks_run() -> int:
        with guard.step() as step:
            model(IDS)
        return step.verdict.checks_run

    assert checks_run() == 26
    board.switch(SwitchOrder(operator=Operator.LINEAR, profile=Profile.OFF, ttl_s=5, reason="slow"))
    assert checks_run() == 4
    clock.sleep(4.9)
    assert checks_run() == 4
    clock.sleep(0.2)
    assert checks_run() == 26
    switched = [event.data for event in sink.of(EventKind.SWITCHED)]
    assert [(data["before"], data["after"]) for data in switched] == [
        ("full", "off"),
        ("off", "full"),
    ]
    guard.detach()


def test_a_check_that_raises_is_counted_told_and_out_for_the_step(
    model: nn.Module, fake_checks: dict[str, Check], sink: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proves fail open, loudly: serving goes on, the other checks run, a P1 event says so."""
    from dataclasses import replace

    def broken(call: Any, **thresholds: float) -> torch.Tensor:
        raise ZeroDivisionError("a bug of the check")

    table = {**fake_checks}
    table["numerical.linear"] = replace(table["numerical.linear"], ratio=broken)
    monkeypatch.setattr("tocsin.checker.runtime.registry", lambda: table)
    guard = tocsin.attach(model, sink=sink)
    with guard.step() as step:
        model(IDS)
    assert step.verdict.ok
    assert step.verdict.checks_run == 4
    assert guard.counters.check_errors["numerical.linear"] == 22
    events = sink.of(EventKind.CHECK_FAILED)
    assert len(events) == 1
    assert events[0].data["priority"] == "P1"
    assert "ZeroDivisionError: a bug of the check" in events[0].data["error"]
    guard.detach()


def test_training_mode_is_refused_in_words(model: nn.Module, fake_checks: dict[str, Check]) -> None:
    """Proves that a training step is not silently left unchecked."""
    guard = tocsin.attach(model)
    model.train()
    with pytest.raises(ContractError, match=r"training mode.*model\.eval\(\)"), guard.step():
        pass
    guard.detach()


def test_autograd_is_off_inside_a_step_and_back_after_it(
    model: nn.Module, fake_checks: dict[str, Check]
) -> None:
    """Proves that checks never join an autograd graph."""
    guard = tocsin.attach(model)
    assert torch.is_grad_enabled()
    with guard.step() as step:
        assert not torch.is_grad_enabled()
        logits = model(IDS).logits
    assert torch.is_grad_enabled()
    assert not logits.requires_grad
    assert step.verdict.checks_run
    guard.detach()


def test_a_call_under_autograd_is_skipped_and_counted(
    model: nn.Module, fake_checks: dict[str, Check]
) -> None:
    """Proves that what could not be checked is said."""
    guard = tocsin.attach(model)
    with guard.step() as step, torch.enable_grad():
        model(IDS)
    assert step.verdict.vacuous
    assert sum(guard.counters.skipped.values()) == 26
    guard.detach()


def test_calls_outside_a_step_are_not_checked(
    model: nn.Module, fake_checks: dict[str, Check]
) -> None:
    """Proves that a forward pass without a step costs no check."""
    guard = tocsin.attach(model)
    with torch.no_grad():
        model(IDS)
    assert guard.counters.checks.total() == 0
    guard.detach()


def test_misuse_is_refused(model: nn.Module, fake_checks: dict[str, Check]) -> None:
    """Proves that nested, late and detached use each get one clear line."""
    guard = tocsin.attach(model)
    with guard.step() as first, pytest.raises(ContractError, match="inside another"), guard.step():
        pass
    with guard.step():
        pass
    with pytest.raises(ContractError, match="after another step began"):
        _ = first.verdict
    guard.detach()
    with pytest.raises(ContractError, match="detached"), guard.step():
        pass
    with pytest.raises(ValueError, match=r"no check \['numerical\.none'\]"):
        tocsin.attach(model, thresholds={"numerical.none": {}})
    with pytest.raises(ValueError, match="loud"):
        tocsin.attach(model, "loud")
    tocsin.attach(model).detach()


def test_thresholds_can_be_set(model: nn.Module, fake_checks: dict[str, Check]) -> None:
    """Proves that a limit given at attach is the limit that is used."""
    guard = tocsin.attach(model, thresholds={"numerical.linear": {"limit": 1e-12}})
    with guard.step() as step:
        model(IDS)
    assert {finding.check for finding in step.verdict.findings} == {"numerical.linear"}
    guard.detach()


def test_a_full_buffer_is_said_and_never_grows(
    model: nn.Module, fake_checks: dict[str, Check]
) -> None:
    """Proves that a model with more sites than lines is partly unchecked, and counted so."""
    guard = tocsin.attach(model)
    guard.runtime.sites._sites_max = 5
    with guard.step() as step:
        model(IDS)
    assert step.verdict.checks_run == 5
    assert any("raise sites_max" in reason for reason in guard.counters.skipped)
    guard.detach()
