"""`numerical.linear_checksum`: rule R on blocks of a matrix product."""

import pytest
import torch
from torch.nn import functional

from tests.checker.calls import DTYPES, generator, linear
from tests.checker.changes import flip
from tocsin.checker.checks.numerical.linear_checksum import (
    checksums,
    linear_checksum,
    signed_weights,
)
from tocsin.core.calls import LinearCall

EXPONENT = {torch.float16: 5, torch.bfloat16: 8, torch.float32: 8}


def alarms(call: LinearCall) -> bool:
    return not bool((linear_checksum(call) <= 1).all())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sign_and_every_exponent_bit_of_an_ordinary_number_are_seen(dtype: torch.dtype) -> None:
    """An output of the block's own root mean square: no class of bit is left out."""
    for bit in range(1 + EXPONENT[dtype]):
        call = linear(generator(bit), dtype, (2, 576), 256)
        assert call.output is not None
        row = call.output[1].float().abs()
        at = 256 + int((row - row.square().mean().sqrt()).abs().argmin())
        flip(call.output, bit, at)
        assert alarms(call), bit


def test_the_upper_half_of_the_mantissa_is_seen_in_float32() -> None:
    """Measured: relative changes of 2^-8 of an ordinary number are above the limit."""
    for bit in range(9, 16):
        call = linear(generator(bit), torch.float32, (2, 576), 256)
        assert call.output is not None
        flip(call.output, bit, 256 + int(call.output[1].abs().argmax()))
        assert alarms(call), bit


def test_a_lost_last_mantissa_bit_is_not_an_alarm() -> None:
    """The nearest miss: a change of one roundoff is what rounding does."""
    for dtype in DTYPES:
        call = linear(generator(), dtype, (2, 576), 256)
        assert call.output is not None
        flip(call.output, call.output.element_size() * 8 - 1, 300)
        assert not alarms(call)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_weight_that_changed_since_it_was_trusted_is_seen(dtype: torch.dtype) -> None:
    """Output and live weight agree; the sums taken at load do not."""
    call = linear(generator(), dtype, (4, 64), 256)
    call.block_sums, call.block_norms, _, _ = checksums(call)
    assert not alarms(call)
    flip(call.weight, 1, 70)
    call.output = functional.linear(call.x, call.weight)
    assert alarms(call)


def test_names_the_token() -> None:
    """One wrong number alarms for its own token alone."""
    call = linear(generator(), torch.float32, (2, 3, 64), 200)
    assert call.output is not None
    call.output[1, 0, 199] += 0.5
    assert (linear_checksum(call) > 1).nonzero().flatten().tolist() == [3]


@pytest.mark.parametrize("huge", [1e6, 1e12, 1e19, 1e30, 3e38])
def test_no_size_of_a_wrong_output_widens_the_limit(huge: float) -> None:
    """arXiv-style limits scale with |y|: a flip to 7.8e36 once switched such a check off."""
    for dtype in (torch.float32, torch.bfloat16):
        call = linear(generator(), dtype, (2, 64), 128)
        assert call.output is not None
        call.output[1, 3], call.output[1, 4] = huge, -huge
        call.output[1, 5] += 8.0
        assert alarms(call)


def test_a_weight_that_exploded_does_not_widen_the_limit_of_a_trusted_one() -> None:
    """Norms come from the trusted weight, so the top exponent bit cannot hide itself."""
    for index in range(0, 64 * 130, 997):
        call = linear(generator(), torch.float32, (2, 64), 130)
        call.block_sums, call.block_norms, _, _ = checksums(call)
        flip(call.weight, 1, index)
        call.output = functional.linear(call.x, call.weight)
        assert alarms(call)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_two_errors_that_cancel_in_a_plain_sum_are_seen_under_weights(dtype: torch.dtype) -> None:
    """Opposite errors, and equal ones: ones are blind to the first, signs to half of both."""
    weights = signed_weights(128)
    assert bool((weights.abs() >= 0.74).all())
    assert weights.abs().unique().numel() == 128
    for first, second in ((0, 1), (5, 90), (63, 64), (100, 127)):
        for factor in (1.0, -1.0):
            call = linear(generator(), dtype, (2, 64), 256)
            plain = linear(generator(), dtype, (2, 64), 256)
            call.block_weights = weights
            call.block_sums, call.block_norms, _, _ = checksums(call)
            assert not alarms(call)
            for one in (call, plain):
                assert one.output is not None
                one.output[1, 128 + first] += 40.0
                one.output[1, 128 + second] += 40.0 * factor
            assert alarms(call), (first, second, factor)
            assert alarms(plain) == (factor > 0)


def test_the_weights_are_the_same_in_every_process() -> None:
    """Sums that are kept in a file stay good: the pattern is part of the format."""
    weights = signed_weights(128)
    assert torch.equal(weights, signed_weights(128))
    assert weights[:4].sign().tolist() == [-1.0, -1.0, 1.0, 1.0]
    assert int(weights.abs().argmax()) == 107


def test_a_norm_with_a_flipped_sign_alarms() -> None:
    """A negative limit would pass everything."""
    call = linear(generator(), torch.float32, (2, 64), 256)
    call.block_sums, call.block_norms, _, _ = checksums(call)
    call.block_norms[1].neg_()
    assert alarms(call)


def test_a_bias_is_part_of_the_sums() -> None:
    """A bias that was lost is seen, in the last and shorter block too."""
    call = linear(generator(), torch.bfloat16, (2, 48), 200, bias=True)
    assert call.output is not None
    assert call.bias is not None
    assert not alarms(call)
    call.output[1, 128:] -= call.bias[128:]
    assert alarms(call)
    assert bool(linear_checksum(call)[0] <= 1)
