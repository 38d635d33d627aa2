"""`numerical.all_reduce`: a sum over ranks, held to the ranks' parts."""

import pytest
import torch

from tests.checker.calls import DTYPES, all_reduce, generator
from tests.checker.changes import flip
from tocsin.checker.checks.numerical.all_reduce import all_reduce as check


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_order_of_the_additions_is_legal(dtype: torch.dtype) -> None:
    """A ring, a tree and one sum in float32 give other bits and no alarm."""
    call = all_reduce(generator(), dtype, 8, 4, 64)
    p = call.partials
    tree = ((p[0] + p[1]) + (p[2] + p[3])) + ((p[4] + p[5]) + (p[6] + p[7]))
    for output in (call.output, p.flip(0).cumsum(0)[-1], tree, p.float().sum(0).to(dtype)):
        call.output = output
        assert bool((check(call) <= 1).all())


def test_names_the_token_whose_part_is_stale() -> None:
    """One rank sent last step's part for one token."""
    call = all_reduce(generator(), torch.bfloat16, 4, 3, 64)
    call.output[1] += torch.randn(64).bfloat16() - call.partials[2, 1]
    assert (check(call) > 1).tolist() == [False, True, False]


def test_a_sign_is_seen() -> None:
    """One number of the result changes its sign on the way."""
    call = all_reduce(generator(), torch.float16, 2, 3, 64)
    flip(call.output, 0)
    assert not bool((check(call) <= 1).all())
