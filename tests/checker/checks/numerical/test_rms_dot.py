"""`numerical.rms_dot`: the sum knows signs."""

import pytest
import torch

from tests.checker.calls import DTYPES, generator, rms_norm
from tests.checker.changes import flip
from tocsin.checker.checks.numerical.rms_dot import rms_dot


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [64, 576, 2048])
def test_the_sign_of_an_ordinary_number_is_seen(dtype: torch.dtype, size: int) -> None:
    """A number of the row's own root mean square, in rows as wide as a model's."""
    call = rms_norm(generator(), dtype, 2, size)
    assert call.output is not None
    row = call.output[1].float().abs()
    flip(call.output, 0, size + int((row - 1).abs().argmin()))
    assert (rms_dot(call) > 1).tolist() == [False, True]


def test_a_huge_number_in_the_output_does_not_widen_the_limit() -> None:
    """The scale is bounded by what the input allows; beyond float32 it alarms by itself."""
    for huge in (1e4, 1e18, 1e30, 3e38):
        call = rms_norm(generator(), torch.float32, 2, 64)
        assert call.output is not None
        call.output[1, 0], call.output[1, 1] = huge, -huge
        call.output[1, 2] += 1.0
        assert not bool(rms_dot(call)[1] <= 1)


def test_a_trusted_weight_shows_that_the_live_one_changed() -> None:
    """One weight of another sign: output and live weight agree, the trusted one does not."""
    call = rms_norm(generator(), torch.float32, 3, 64)
    call.weight_trusted = call.weight.clone()
    assert call.output is not None
    call.weight[7] *= -1
    call.output[:, 7] *= -1
    assert (rms_dot(call) > 1).tolist() == [False, True, True]
