"""`state.page_epoch`: the page is of the allocation and the place that the table means."""

import pytest
import torch

from tests.checker.calls import generator, kv_read
from tocsin.checker.checks.state.page_epoch import page_epoch


@pytest.mark.parametrize("field", ["epochs", "first_positions", "lengths"])
def test_each_tag_counts_and_names_its_row(field: str) -> None:
    """Reallocated, moved or not filled as far: each is another page than was meant."""
    call = kv_read(generator(), (2, 3))
    assert page_epoch(call).tolist() == [0, 0]
    getattr(call, field)[4] += 1
    assert torch.isinf(page_epoch(call)).tolist() == [False, True]


def test_a_page_that_came_back_to_its_old_owner_is_still_another_one() -> None:
    """After a preemption owner and position may fit again; the epoch does not."""
    call = kv_read(generator(), (2, 3))
    call.epochs[0] += 2
    assert torch.isinf(page_epoch(call)).tolist() == [True, False]
