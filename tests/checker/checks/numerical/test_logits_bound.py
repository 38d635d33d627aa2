"""`numerical.logits_bound`: no logit is larger than hidden state and weight allow."""

import pytest
import torch

from tests.checker.calls import DTYPES, generator, logits
from tocsin.checker.checks.numerical.logits_bound import logits_bound
from tocsin.core.calls import LogitsCall


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_logit_at_the_bound_is_legal(dtype: torch.dtype) -> None:
    """The nearest miss: a weight row in the very direction of the hidden state."""
    hidden = torch.randn(1, 32).to(dtype)
    weight = torch.cat((hidden, torch.zeros(3, 32).to(dtype)))
    call = LogitsCall(logits=hidden @ weight.T, hidden=hidden, weight=weight)
    assert 0.9 < float(logits_bound(call)) <= 1.0


def test_names_the_row() -> None:
    """Only the row with the impossible logit alarms."""
    call = logits(generator(), torch.float32, 4)
    call.logits[2, 5] = -1e4
    assert (logits_bound(call) > 1).tolist() == [False, False, True, False]


def test_a_trusted_norm_keeps_an_exploded_weight_out_of_the_bound() -> None:
    """The live weight cannot raise its own limit."""
    call = logits(generator(), torch.float32, 4)
    assert call.weight is not None
    assert call.hidden is not None
    call.weight_norm_max = call.weight.norm(dim=-1).amax()
    call.weight[3, 3] = 1e30
    call.logits = call.hidden @ call.weight.T
    assert (logits_bound(call) > 1).tolist() == [False, True, True, True]  # row 0 is all zero


def test_a_hidden_state_that_overflows_is_no_bound() -> None:
    """A norm beyond float32 is an alarm: otherwise every logit would be legal."""
    call = logits(generator(), torch.float32, 2)
    assert call.hidden is not None
    call.hidden[1, 0] = 3e38
    assert not bool(logits_bound(call)[1] <= 1)


def test_a_soft_cap_is_the_bound_where_there_is_one() -> None:
    """Gemma 2: a capped logit cannot exceed the cap."""
    call = logits(generator(), torch.bfloat16, 2)
    call.softcap = 30.0
    call.logits = torch.tanh(call.logits / 30.0) * 30.0
    assert bool((logits_bound(call) <= 1).all())
    call.logits[1, 0] = 31.0
    assert not bool(logits_bound(call)[1] <= 1)
