"""`numerical.rope_norm`: a rotation keeps the length of every pair."""

import pytest
import torch

from tests.checker.calls import DTYPES, consecutive, generator, rope
from tests.checker.changes import flip
from tocsin.checker.checks.numerical.rope_norm import rope_norm


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_exponent_bit_of_a_rotated_number_is_seen(dtype: torch.dtype) -> None:
    """From x2 to the top: a number of the pair's own size that changes alarms."""
    exponents = range(1, {torch.float16: 6, torch.bfloat16: 9, torch.float32: 9}[dtype])
    for bit in exponents:
        call = rope(generator(bit), dtype, consecutive(generator(), 2, 4))
        assert call.q_out is not None
        flip(call.q_out, bit)
        assert not bool((rope_norm(call) <= 1).all()), bit


def test_names_the_token_over_all_heads() -> None:
    """The ratio has one number a token, the largest over query and key heads."""
    call = rope(generator(), torch.float32, consecutive(generator(), 2, 4))
    assert call.k_out is not None
    call.k_out[1, 0, 2] *= 1.5
    assert (rope_norm(call) > 1).nonzero().flatten().tolist() == [6]


def test_is_blind_to_signs_and_positions_by_nature() -> None:
    """A norm does not know them: rope_signed_sum and rope_table do."""
    call = rope(generator(), torch.float32, consecutive(generator(), 2, 4))
    assert call.q_out is not None
    call.q_out.neg_()
    call.position_ids = call.position_ids + 1
    assert bool((rope_norm(call) <= 1).all())


def test_a_rotation_of_q_alone_is_checked_alone() -> None:
    """An engine that has only one of the two gets half of the check."""
    call = rope(generator(), torch.float32, consecutive(generator(), 2, 4))
    call.k_out = None
    assert bool((rope_norm(call) <= 1).all())
    call.q_out = None
    assert rope_norm(call).numel() == 0
