"""`numerical.rms_range`: the output has the size that the input allows."""

import pytest
import torch
from torch.nn import functional

from tests.checker.calls import DTYPES, generator, normal, rms_norm
from tocsin.checker.checks.numerical.rms_range import rms_range
from tocsin.core.calls import RMSNormCall


def test_squares_summed_in_half_precision_alarm_although_everything_is_finite() -> None:
    """nntrainer/nntrainer#3935: the sum overflows, the output is exactly 0 and finite."""
    x = normal(generator(), torch.float16, 4, 2048, scale=20.0)
    mean = x.square().sum(-1, keepdim=True, dtype=torch.float16) / 2048
    output = x * (mean + 1e-6).rsqrt()
    assert bool(torch.isfinite(output).all())
    call = RMSNormCall(x=x, weight=torch.ones(2048).half(), eps=1e-6, output=output)
    assert not bool((rms_range(call) <= 1).any())


@pytest.mark.parametrize("eps", [0.0, 1e-4, 1e-8])
def test_another_eps_alarms_where_the_variance_is_small(eps: float) -> None:
    """pytorch/pytorch#41527: an eps that is lost or raised changes such rows."""
    x = normal(generator(), torch.float32, 4, 64, scale=5e-4)
    output = functional.rms_norm(x, (64,), None, eps or 1e-20)
    call = RMSNormCall(x=x, weight=torch.ones(64), eps=1e-6, output=output)
    assert not bool((rms_range(call) <= 1).any())


def test_another_eps_does_not_matter_where_the_variance_is_large() -> None:
    """The nearest miss: a difference below the roundings of the dtype is none."""
    x = normal(generator(), torch.bfloat16, 4, 64)
    output = functional.rms_norm(x, (64,), None, 1e-5)
    call = RMSNormCall(x=x, weight=torch.ones(64).bfloat16(), eps=1e-6, output=output)
    assert bool((rms_range(call) <= 1).all())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_channels_with_a_tiny_weight_are_left_out(dtype: torch.dtype) -> None:
    """Dividing by a weight near 0 would turn rounding into alarms."""
    call = rms_norm(generator(), dtype, 4, 64)
    weight = call.weight.clone()
    weight[::7] = 1e-4
    weight[3] = 0
    output = weight * functional.rms_norm(call.x, (64,), None, call.eps)
    call = RMSNormCall(x=call.x, weight=weight, eps=call.eps, output=output)
    assert bool((rms_range(call) <= 1).all())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_weight_of_zeros_gives_zeros_and_a_weight_that_is_no_number_alarms(
    dtype: torch.dtype,
) -> None:
    """Without a channel to divide by, the one is defined and the other is not."""
    call = rms_norm(generator(), dtype, 4, 64)
    call.weight, call.output = torch.zeros_like(call.weight), torch.zeros_like(call.x)
    assert bool((rms_range(call) < 1e-6).all())
    for value in (torch.nan, torch.inf):
        call.weight[3] = value
        assert not bool((rms_range(call) <= 1).any())


def test_a_trusted_weight_shows_that_the_live_one_changed() -> None:
    """Output and live weight agree with each other, not with what was loaded."""
    call = rms_norm(generator(), torch.float32, 4, 64)
    call.weight_trusted = call.weight.clone()
    assert bool((rms_range(call) <= 1).all())
    call.weight[5] = 40.0
    call.output = functional.rms_norm(call.x, (64,), call.weight, call.eps)
    assert (rms_range(call) > 1).tolist() == [False, True, True, True]  # row 0 is all zero
