"""`state.page_owner`: a page is its row's own or shared, and private pages stand once."""

import torch

from tests.checker.calls import generator, kv_read
from tocsin.checker.checks.state.page_owner import page_owner


def test_a_page_that_was_published_since_is_still_legal() -> None:
    """Tag shared, table private: the prefix index has taken the page over meanwhile."""
    call = kv_read(generator(), (2, 2))
    call.owners[0] = -1
    assert page_owner(call).tolist() == [0, 0]


def test_a_page_that_was_taken_back_is_not() -> None:
    """Tag private, table shared: the page was evicted and given to somebody else."""
    call = kv_read(generator(), (2, 2), shared=1)
    call.owners[2] = 5
    assert torch.isinf(page_owner(call)).tolist() == [True, True]  # both hold page 1


def test_one_shared_page_in_many_rows_is_legal_and_twice_in_one_row_is_not() -> None:
    """Sharing is between requests: inside a row each position has its own page."""
    call = kv_read(generator(), (3, 3), shared=2)
    assert page_owner(call).tolist() == [0, 0]
    call.pages[1] = call.pages[0]
    assert torch.isinf(page_owner(call)).tolist() == [True, False]


def test_a_private_page_in_two_rows_alarms_for_both_even_with_fitting_tags() -> None:
    """The tags may agree with the table: the alias is visible in the pages themselves."""
    call = kv_read(generator(), (2, 2, 2))
    call.pages[0] = call.pages[4]
    assert torch.isinf(page_owner(call)).tolist() == [True, False, True]


def test_a_freed_page_alarms() -> None:
    """Nobody owns it, so it is not this row's either."""
    call = kv_read(generator(), (2, 2))
    call.owners[3] = -2
    assert torch.isinf(page_owner(call)).tolist() == [False, True]
