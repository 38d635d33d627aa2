"""`semantic.token_range`: ids in [0, V)."""

import torch

from tests.checker.calls import batch, embedding, generator
from tocsin.checker.checks.semantic.token_range import token_range
from tocsin.core.calls import TokenizerOutputCall


def test_first_and_last_id_are_in_range_and_their_neighbours_are_not() -> None:
    """The nearest misses on both ends."""
    ids = torch.tensor([[0, 99], [-1, 100]])
    call = TokenizerOutputCall(input_ids=ids, vocab_size=100)
    assert torch.isinf(token_range(call)).tolist() == [False, False, True, True]


def test_an_embedding_knows_its_own_vocabulary() -> None:
    """The size comes from the weight that is read."""
    call = embedding(generator(), torch.float32, 2, 2)
    call.input_ids[1, 0] = call.weight.shape[0]
    assert torch.isinf(token_range(call)).tolist() == [False, False, True, False]


def test_a_batch_names_the_row() -> None:
    """One placeholder among the rows of a decode step."""
    call = batch(generator(), 3, 1)
    call.input_ids[2] = -1
    assert torch.isinf(token_range(call)).tolist() == [False, False, True]
