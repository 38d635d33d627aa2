"""`numerical.embedding_rows`: a lookup copies the rows of its ids, bit for bit."""

import pytest
import torch

from tests.checker.calls import DTYPES, embedding, generator
from tests.checker.changes import flip
from tocsin.checker.checks.numerical.embedding_rows import embedding_rows


def alarming(call: object) -> list[int]:
    return (embedding_rows(call) > 1).nonzero().flatten().tolist()  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_single_bit_is_seen(dtype: torch.dtype) -> None:
    """An exact check has no limit to hide below."""
    for bit in range(8 * dtype.itemsize):
        call = embedding(generator(bit), dtype, 3, 7)
        flip(call.output, bit, 24 * 9 + 5)
        assert alarming(call) == [9]


def test_zero_and_minus_zero_are_not_the_same() -> None:
    """Bits are compared, not numbers."""
    call = embedding(generator(), torch.float32, 4)
    call.weight[call.input_ids[2], 3] = 0.0
    call.output[2, 3] = -0.0
    assert alarming(call) == [2]


def test_a_row_of_another_word_is_seen() -> None:
    """An id taken from its neighbour: the row is one of the table, but not this token's."""
    call = embedding(generator(), torch.bfloat16, 5)
    call.input_ids = torch.tensor([3, 4, 5, 6, 7])
    call.output = call.weight[torch.tensor([3, 4, 6, 6, 7])]
    assert alarming(call) == [2]


def test_an_id_beyond_the_table_alarms_and_reads_nothing() -> None:
    """semantic.token_range says which; here nothing is read out of bounds."""
    for wrong in (-1, 50, 2**40, -(2**62)):
        call = embedding(generator(), torch.float32, 4)
        call.input_ids[1] = wrong
        assert alarming(call) == [1]


def test_a_nan_of_the_table_is_a_copy_as_any_other() -> None:
    """Whether it belongs there is for the sums of the weight to say."""
    call = embedding(generator(), torch.float16, 4)
    call.weight[call.input_ids[0], 1] = torch.nan
    call.output = call.weight[call.input_ids]
    assert alarming(call) == []


def test_an_output_in_another_dtype_is_compared_as_cast() -> None:
    """A table in float32 whose rows leave in bfloat16."""
    call = embedding(generator(), torch.float32, 4)
    call.output = call.output.to(torch.bfloat16)
    assert alarming(call) == []
    call.output[3, 0] *= 2
    assert alarming(call) == [3]
