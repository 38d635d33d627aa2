"""`state.weight_sum`: weights are those that were loaded."""

import pytest
import torch

from tests.checker.calls import generator, weight
from tocsin.checker.checks.state.weight_sum import weight_sum


@pytest.mark.parametrize("bit", [0, 31, 62, 63])
def test_any_bit_of_any_sum_concerns_every_row(bit: int) -> None:
    """A weight serves everybody, so the ratio is one number for the whole call."""
    call = weight(generator(), 5)
    assert weight_sum(call).tolist() == [0.0]
    call.sums[3] ^= torch.tensor(-(2**63) if bit == 63 else 1 << bit)
    assert weight_sum(call).tolist() == [float("inf")]
