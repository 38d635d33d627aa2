"""`numerical.finite`: one maximum finds NaN and infinity and measures the headroom."""

import pytest
import torch

from tests.checker.calls import DTYPES
from tocsin.checker.checks.numerical.finite import finite
from tocsin.core.calls import AttentionCall, LinearCall, RMSNormCall, VarlenAttentionCall
from tocsin.core.terms import Operator, Profile


def linear(output: torch.Tensor) -> LinearCall:
    x = torch.zeros(*output.shape[:-1], 3, dtype=output.dtype)
    weight = torch.zeros(output.shape[-1], 3, dtype=output.dtype)
    return LinearCall(x=x, weight=weight, output=output)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_largest_number_is_still_a_number(dtype: torch.dtype) -> None:
    """The nearest miss: at the end of the range, not beyond it."""
    output = torch.full((2, 4), torch.finfo(dtype).max, dtype=dtype)
    assert finite(linear(output)).tolist() == [1.0, 1.0]
    assert not bool((finite(linear(output), headroom=0.5) <= 1).any())


def test_names_the_token() -> None:
    """Only the token with the NaN alarms, whatever stands beside it."""
    output = torch.zeros(2, 3, 4)
    output[1, 0, 2] = torch.nan
    assert torch.isnan(finite(linear(output))).tolist() == [False, False, False, True, False, False]


def test_heads_of_one_token_are_one_token() -> None:
    """[R,H,S,E] is reduced over heads, so that the ratio has one number a token."""
    output = torch.zeros(2, 4, 3, 8)
    output[1, 3, 2, 7] = torch.inf
    call = AttentionCall(q=output, k=torch.zeros(2, 2, 3, 8), v=torch.zeros(2, 2, 3, 8))
    call.q, call.output = torch.zeros(2, 4, 3, 8), output
    assert torch.isinf(finite(call)).nonzero().flatten().tolist() == [5]


def test_packed_tokens_keep_their_places() -> None:
    """[T,H,E] is reduced over heads and features."""
    cu = torch.tensor([0, 3], dtype=torch.int32)
    qkv = torch.zeros(3, 3, 2, 8)
    call = VarlenAttentionCall(
        qkv=qkv, cu_seqlens_q=cu, cu_seqlens_k=cu, max_seqlen_q=3, max_seqlen_k=3
    )
    call.output = torch.zeros(3, 2, 8)
    call.output[1, 1, 0] = torch.nan
    assert torch.isnan(finite(call)).tolist() == [False, True, False]


def test_looks_at_inputs_only_while_there_is_no_output() -> None:
    """With an output, an input is another operator's; without one, it is all there is."""
    x = torch.tensor([[1.0, torch.nan]])
    call = RMSNormCall(x=x, weight=torch.ones(2), eps=1e-6)
    assert torch.isnan(finite(call)).all()
    call.output = torch.ones(1, 2)
    assert finite(call)[0] < 1


def test_runs_under_guard_where_an_answer_ends() -> None:
    """Attention and logits are looked at under the light profile, the rest under the full one."""
    assert finite.profile_at(Operator.ATTENTION) is Profile.GUARD
    assert finite.profile_at(Operator.LOGITS) is Profile.GUARD
    assert finite.profile_at(Operator.LINEAR) is Profile.FULL
