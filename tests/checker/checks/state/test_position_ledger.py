"""`state.position_ledger`: positions count committed tokens, whatever the padding."""

import torch

from tests.checker.calls import batch, generator, kv_update
from tocsin.checker.checks.state.position_ledger import position_ledger


def test_left_padded_rows_are_right_as_they_are() -> None:
    """Positions neither follow the column nor the tensor's length."""
    call = kv_update(generator(), torch.float32, (2, 5), 5, (3, 0))
    assert call.position_ids.tolist() == [0, 0, 0, 0, 1, 0, 1, 2, 3, 4]
    assert position_ledger(call).tolist() == [0] * 10


def test_one_position_vector_for_all_rows_alarms_for_the_padded_ones() -> None:
    """unslothai/unsloth#3699: every row but the longest is garbage."""
    call = kv_update(generator(), torch.float32, (6, 9), 1)
    call.position_ids = torch.tensor([8, 8])
    assert torch.isinf(position_ledger(call)).tolist() == [True, False]


def test_a_chunk_continues_where_the_row_stands() -> None:
    """A second prefill chunk that starts at 0 again alarms for every token."""
    call = kv_update(generator(), torch.float32, (12,), 4)
    assert call.position_ids.tolist() == [8, 9, 10, 11]
    assert bool((position_ledger(call) == 0).all())
    call.position_ids = torch.arange(4)
    assert bool(torch.isinf(position_ledger(call)).all())


def test_a_batch_is_compared_with_the_ledger_token_by_token() -> None:
    """Before the launch both are known on the host."""
    call = batch(generator(), 3, 1)
    call.position_ids[1] -= 1
    assert torch.isinf(position_ledger(call)).tolist() == [False, True, False]
