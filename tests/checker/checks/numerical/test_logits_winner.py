"""`numerical.logits_winner`: the largest logit is the product of its own row."""

from typing import Any

import pytest
import torch

from tests.checker.calls import DTYPES, generator, logits, trusted_logits
from tests.checker.changes import flip
from tocsin.checker.checks.numerical.logits_winner import logits_winner


def alarming(call: Any) -> list[int]:
    ratio = logits_winner(call)
    return (~(ratio <= 1)).nonzero().flatten().tolist()


def made(dtype: torch.dtype, seed: int = 0) -> Any:
    return trusted_logits(logits(generator(seed), dtype, 2, 3))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_token_that_is_lifted_above_the_winner_is_seen(dtype: torch.dtype) -> None:
    """Any token, also one that was last: the wrong winner has no row that gives its logit."""
    for seed in range(4):
        call = made(dtype, seed)
        flat = call.logits.view(6, -1)
        top = flat[4].amax()
        flat[4, flat[4].argmin()] = top * 1.25
        assert alarming(call) == [4]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_rows_of_two_winners_swapped_are_seen(dtype: torch.dtype) -> None:
    """Logits of another request of the batch."""
    call = made(dtype)
    call.logits = call.logits.flip(0)
    assert set(alarming(call)) >= {1, 2, 4, 5}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_of_the_head_that_changed_since_is_seen(dtype: torch.dtype) -> None:
    """Output and weight agree with each other, the kept sum of the row does not."""
    call = made(dtype)
    winner = int(call.logits.view(6, -1)[5].argmax())
    flip(call.weight[winner], 0, int(call.weight[winner].abs().argmax()))
    call.logits = call.hidden @ call.weight.T
    again = int(call.logits.view(6, -1)[5].argmax())
    if again == winner:
        assert 5 in alarming(call)
    call.weight_row_sums = None
    assert alarming(call) == []


def test_a_loser_that_changed_is_not_its_business() -> None:
    """It is that of the block sums: here one number a row is looked at."""
    call = made(torch.float32)
    flat = call.logits.view(6, -1)
    flat[3, flat[3].argmin()] *= 3
    assert alarming(call) == []


def test_a_tie_may_go_to_either() -> None:
    """An all-zero hidden state makes all logits equal: any of them is its own row's."""
    call = made(torch.bfloat16)
    assert not call.logits.view(6, -1)[0].any()
    assert 0 not in alarming(call)


def test_the_cap_is_part_of_the_product() -> None:
    """Gemma 2: the logit is the cap of the product, and is held to that."""
    for dtype in DTYPES:
        call = made(dtype)
        call.softcap = 15.0
        raw = (call.hidden.float() @ call.weight.float().T).to(dtype)
        call.logits = torch.tanh(raw / 15.0) * 15.0
        assert alarming(call) == []
        call.softcap = None
        assert alarming(call) != []


def test_says_nothing_where_nothing_is_known() -> None:
    """Logits alone, or with one of the two factors."""
    call = made(torch.float32)
    call.weight = None
    assert logits_winner(call).numel() == 0


@pytest.mark.parametrize("huge", [1e6, 1e19, 3e38])
def test_no_size_of_a_wrong_logit_widens_the_limit(huge: float) -> None:
    """The winner is as large as the fault makes it; the limit is that of hidden state and row."""
    for dtype in (torch.float32, torch.bfloat16):
        call = made(dtype)
        call.logits.view(6, -1)[2, 7] = huge
        assert alarming(call) == [2]


@pytest.mark.parametrize("value", [-1.0, torch.nan])
def test_a_norm_that_is_none_alarms(value: float) -> None:
    """A negative limit would pass everything."""
    call = made(torch.float32)
    call.weight_norm_max = torch.tensor(value)
    assert alarming(call) != []
