"""`numerical.attention_hull`: no output leaves what it may mix."""

import torch

from tests.checker.calls import attention, generator, left_padded, paged_tail
from tocsin.checker.checks.numerical.attention_hull import attention_hull


def test_a_value_just_outside_alarms_and_one_at_the_edge_does_not() -> None:
    """The hull is that of the row's own head and feature, and its edge belongs to it."""
    call = attention(generator(), torch.float32, (1, 8))
    assert call.output is not None
    edge = call.v[1, 0, :, 3].amax()
    call.output[1, 0, 0, 3] = edge
    assert bool((attention_hull(call) <= 1).all())
    call.output[1, 0, 0, 3] = edge * 1.001
    assert (attention_hull(call) > 1).tolist() == [False, True]


def test_hidden_keys_do_not_widen_the_hull() -> None:
    """Only what the mask allows counts: the tail of a page is not the row's."""
    call = attention(generator(), torch.float32, (1, 16), mask=paged_tail((3, 9), 16))
    call.v[0, :, 4:] = 100.0
    assert call.output is not None
    call.output[0, 2, 0, 5] = 50.0
    assert (attention_hull(call) > 1).tolist() == [True, False]


def test_a_nan_behind_the_mask_is_legal_while_it_does_not_leak() -> None:
    """A kernel that skips hidden keys may leave anything there; one that leaks shows it."""
    call = attention(generator(), torch.float32, (1, 16), mask=paged_tail((3, 9), 16))
    call.v[0, :, 12] = torch.nan
    assert bool((attention_hull(call) <= 1).all())
    assert call.output is not None
    call.output[0, 0, 0, 0] = torch.nan
    assert not bool(attention_hull(call)[0] <= 1)


def test_an_infinite_value_does_not_make_everything_legal() -> None:
    """A hull without an end is an alarm, not a wide gate."""
    call = attention(generator(), torch.float32, (1, 8))
    call.v[1, 1, 2, 0] = torch.inf
    assert not bool((attention_hull(call) <= 1).all())


def test_padding_queries_are_left_to_the_mask_check() -> None:
    """A query that may see nothing has no hull."""
    call = attention(generator(), torch.float32, (6, 6), mask=left_padded(6, (3, 0)))
    assert call.output is not None
    call.output[0, :, 0] = 77.0
    assert attention_hull(call)[0] == 0
