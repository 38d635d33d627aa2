"""`numerical.rope_signed_sum`: a flipped sign keeps the norm, not the sum."""

import pytest
import torch

from tests.checker.calls import DTYPES, consecutive, generator, rope
from tests.checker.changes import flip
from tocsin.checker.checks.numerical.rope_signed_sum import rope_signed_sum


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("seed", range(10))
def test_a_sign_of_an_ordinary_number_is_seen(dtype: torch.dtype, seed: int) -> None:
    """Not only the largest: any number of at least half the head's root mean square."""
    call = rope(generator(seed), dtype, consecutive(generator(), 1, 1), (1, 1), 64)
    assert call.k_out is not None
    head = call.k_out[0, 0, 0].float()
    ordinary = (head.abs() - head.square().mean().sqrt() / 2).abs().argmin()
    flip(call.k_out, 0, int(ordinary))
    assert not bool((rope_signed_sum(call) <= 1).all())


def test_uses_the_table_that_the_rotation_used() -> None:
    """Sums under the table of the next position do not fit."""
    call = rope(generator(), torch.float32, torch.tensor([[7]]))
    other = rope(generator(), torch.float32, torch.tensor([[8]]))
    call.cos, call.sin = other.cos, other.sin
    assert not bool((rope_signed_sum(call) <= 1).all())


def test_features_that_pass_through_count() -> None:
    """Under partial rotation the rest must come out as it went in."""
    call = rope(generator(), torch.float32, consecutive(generator(), 1, 2), size=24, turned=8)
    assert call.q_out is not None
    call.q_out[0, 1, 1, 20] += 0.1
    assert (rope_signed_sum(call) > 1).tolist() == [False, True]
