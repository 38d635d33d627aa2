"""`semantic.token_ledger`: a step feeds in what was committed."""

import torch

from tests.checker.calls import batch, generator
from tocsin.checker.checks.semantic.token_ledger import token_ledger


def test_a_valid_token_that_is_not_the_requests_alarms_for_its_row() -> None:
    """tenstorrent/vllm#395: the id is in range, the text is another one."""
    call = batch(generator(), 3, 1)
    call.input_ids[0] = (call.input_ids[0] + 1) % 100
    assert torch.isinf(token_ledger(call)).tolist() == [True, False, False]


def test_two_rows_exchanged_alarm_for_both() -> None:
    """Each token is somebody's, and still wrong."""
    call = batch(generator(), 2, 1)
    call.input_ids_expected = torch.tensor([5, 6])
    call.input_ids = torch.tensor([6, 5])
    assert torch.isinf(token_ledger(call)).tolist() == [True, True]
