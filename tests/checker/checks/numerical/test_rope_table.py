"""`numerical.rope_table`: cos and sin belong to the positions and the trusted frequencies."""

import pytest
import torch
from torch import Tensor

from tests.checker.calls import consecutive, generator, rope
from tocsin.checker.checks.numerical.rope_table import rope_table
from tocsin.core.calls import RopeCall


def silent(call: RopeCall) -> bool:
    return bool((rope_table(call) <= 1).all())


def test_left_padded_positions_are_right_as_they_are() -> None:
    """The table follows the ledger's positions, not the column of the batch."""
    positions = torch.tensor([[1, 1, 1, 0, 1], [0, 1, 2, 3, 4]])
    assert silent(rope(generator(), torch.float32, positions))
    shared = rope(generator(), torch.float32, positions)
    column = rope(generator(), torch.float32, torch.arange(5)[None].expand(2, 5))
    shared.cos, shared.sin = column.cos, column.sin
    ratio = rope_table(shared).view(2, 5)
    assert (ratio[0] > 1).tolist() == [True, False, True, True, True]
    assert bool((ratio[1] <= 1).all())


@pytest.mark.parametrize("position", [1, 100, 2047, 32_767])
def test_the_position_before_and_after_alarm_everywhere_in_the_context(position: int) -> None:
    """An off-by-one is seen at the end of a long context too."""
    for step in (-1, 1):
        call = rope(generator(), torch.float32, torch.tensor([[position]]), size=64)
        assert silent(call)
        call.position_ids = call.position_ids + step
        assert not silent(call)


@pytest.mark.parametrize("low", [torch.float16, torch.bfloat16], ids=str)
def test_angles_computed_in_half_precision_alarm(low: torch.dtype) -> None:
    """EleutherAI/gpt-neox#1003: half-precision angles are off by up to 2 at position 2,048."""
    call = rope(generator(), torch.float32, consecutive(generator(), 1, 32) + 1_800, size=32)
    assert call.inv_freq is not None
    angles = call.position_ids[..., None].to(low) * call.inv_freq.to(low)
    angles = torch.cat((angles, angles), dim=-1).float()
    call.cos, call.sin = angles.cos(), angles.sin()
    assert not silent(call)


def test_frequencies_cast_to_bfloat16_alarm() -> None:
    """`model.to(torch.bfloat16)` casts the buffer, and the table drifts with the position."""
    call = rope(generator(), torch.bfloat16, torch.tensor([[1_000]]), size=64)
    assert call.inv_freq is not None
    assert silent(call)
    angles = 1_000 * call.inv_freq.bfloat16().float()
    angles = torch.cat((angles, angles))[None, None]
    call.cos, call.sin = angles.cos().bfloat16(), angles.sin().bfloat16()
    assert not silent(call)


def test_one_changed_frequency_alarms() -> None:
    """One entry of the table times four: norms stay right, this does not."""
    clean = rope(generator(), torch.float32, consecutive(generator(), 2, 3))
    assert clean.inv_freq is not None
    for entry in range(clean.inv_freq.numel() // 4):
        changed = clean.inv_freq.clone()
        changed[entry] *= 4
        angles = clean.position_ids[..., None] * torch.cat((changed, changed))
        call = rope(generator(), torch.float32, clean.position_ids)
        call.cos, call.sin = angles.cos().float(), angles.sin().float()
        assert not silent(call)


def test_without_trusted_frequencies_the_identity_is_left() -> None:
    """cos² + sin² sees a damaged entry, and cannot see a foreign position."""
    call = rope(generator(), torch.float32, consecutive(generator(), 2, 3))
    call.inv_freq = None
    call.position_ids = call.position_ids + 1
    assert silent(call)
    call.cos[0, 1, 3] += 0.3
    assert not silent(call)


def test_long_prompts_are_spot_checked_from_end_to_end() -> None:
    """First and last position are among the spots, and the result names rows."""
    call = rope(generator(), torch.float32, consecutive(generator(), 2, 300))
    assert silent(call)
    assert rope_table(call).shape == (600,)
    for at in (0, 299):
        broken = rope(generator(), torch.float32, call.position_ids)
        broken.cos[1, at], broken.sin[1, at] = _turned(broken.cos[1, at], broken.sin[1, at])
        ratio = rope_table(broken).view(2, 300)
        assert bool((ratio[0] <= 1).all())
        assert not bool((ratio[1] <= 1).all())


def _turned(cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """The same table turned by a constant angle: cos² + sin² stays 1."""
    angle = torch.tensor(0.5)
    return cos * angle.cos() - sin * angle.sin(), sin * angle.cos() + cos * angle.sin()
