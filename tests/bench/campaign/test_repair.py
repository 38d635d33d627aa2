"""What the engine's gate repairs has the golden bits; what no check sees is not called repaired."""

from typing import Any

import pytest

from tests.bench.campaign.tiny import prompts, tiny
from tocsin.bench.campaign import repair, serving
from tocsin.bench.campaign.repair import repair_trials
from tocsin.checker.guard import Guard, attach
from tocsin.core.terms import Profile


def test_repaired_steps_are_bit_identical() -> None:
    """Loud transient faults are seen, run again once, and leave no trace."""
    total = repair_trials(tiny(), prompts(3), 12, 1, "repair")
    assert total["faults"] == 12
    assert total["trials"] >= 8
    assert total["identical"] == total["trials"] == total["transient"]
    assert max(total["extra_runs"]) <= 2
    assert min(total["extra_runs"]) >= 1
    assert total["step_s"]


def test_a_blind_gate_repairs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not seen ends its episode; it counts as missed where a logit changed."""

    def blind(*args: Any, **kwargs: Any) -> Guard:
        guard = attach(*args, **kwargs)
        guard.switchboard.set_profile(Profile.OFF, "test")
        return guard

    monkeypatch.setattr(serving, "attach", blind)
    total = repair_trials(tiny(), prompts(3), 6, 1, "repair")
    assert total["trials"] == total["identical"] == 0
    assert total["unseen"] == 6
    assert total["missed"] >= 3


def test_every_fourth_step_is_left_alone() -> None:
    """It says what a step takes when nothing is wrong."""
    rows = [step for step in repair._steps(tiny(), prompts(3), 12, 6, (1, "steps"))]
    faulty = [fault is not None for _, fault, _ in rows]
    assert sum(faulty) == 6
    assert not all(faulty)
