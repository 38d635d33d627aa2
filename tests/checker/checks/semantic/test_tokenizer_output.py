"""`semantic.tokenizer_output`: mask, padding, positions and length fit the tokens."""

import pytest
import torch

from tests.checker.calls import generator, tokenizer
from tocsin.checker.checks.semantic.tokenizer_output import tokenizer_output
from tocsin.core.calls import TokenizerOutputCall


def output(mask: list[list[int]], positions: list[list[int]] | None = None) -> TokenizerOutputCall:
    return TokenizerOutputCall(
        input_ids=torch.zeros(len(mask), len(mask[0]), dtype=torch.int64),
        attention_mask=torch.tensor(mask),
        position_ids=None if positions is None else torch.tensor(positions),
        vocab_size=10,
    )


def rows(call: TokenizerOutputCall) -> list[int]:
    return torch.isinf(tokenizer_output(call)).nonzero().flatten().tolist()


def test_padding_stands_on_one_side() -> None:
    """Left, right, none and all are legal; a hole and both sides are not."""
    mask = [[0, 0, 1, 1], [1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0], [1, 0, 1, 1], [0, 1, 1, 0]]
    assert rows(output(mask)) == [4, 5]


def test_positions_of_real_tokens_count_from_zero_and_padding_holds_anything() -> None:
    """Transformers writes 1 under padding, others 0 or the column: none of them is read."""
    mask = [[0, 0, 1, 1]] * 4
    positions = [[1, 1, 0, 1], [0, 0, 0, 1], [7, 9, 0, 1], [0, 1, 2, 3]]
    assert rows(output(mask, positions)) == [3]


def test_the_limit_counts_real_tokens_only() -> None:
    """Padding to a common length does not make a prompt too long."""
    call = tokenizer(generator(), (3, 9, 1), "left")
    call.max_length = 9
    assert rows(call) == []
    call.max_length = 8
    assert rows(call) == [1]


@pytest.mark.parametrize("value", [2, -1, 255])
def test_a_mask_holds_zeros_and_ones(value: int) -> None:
    """Segment ids or lengths passed as a mask are not one."""
    assert rows(output([[1, 1, 1], [1, value, 1]])) == [1]


def test_one_sequence_without_a_batch_axis_is_one_row() -> None:
    """[S] is understood as [1,S]."""
    call = TokenizerOutputCall(input_ids=torch.arange(4), vocab_size=10)
    assert tokenizer_output(call).tolist() == [0.0]
