"""`numerical.attention_row_sum`: the features add up to what recomputed weights make of V."""

import pytest
import torch
from torch.nn import functional

from tests.checker.calls import DTYPES, attention, generator, left_padded, paged_tail
from tests.checker.changes import flip
from tocsin.checker.checks.numerical.attention_row_sum import attention_row_sum
from tocsin.core.calls import AttentionCall


def alarms(call: AttentionCall) -> bool:
    return not bool((attention_row_sum(call) <= 1).all())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sign_and_exponent_bits_of_the_largest_output_are_seen(dtype: torch.dtype) -> None:
    """Down to the lowest exponent bit, which doubles or halves the number."""
    for bit in range(1 + {torch.float16: 5, torch.bfloat16: 8, torch.float32: 8}[dtype]):
        call = attention(generator(bit), dtype, (4, 12), causal=True)
        assert call.output is not None
        flip(call.output, bit, int(call.output.abs().float().argmax()))
        assert alarms(call), bit


@pytest.mark.parametrize("queries", [1, 2])
def test_causality_at_the_wrong_corner_is_seen(queries: int) -> None:
    """pytorch/pytorch#103082: with one query and top-left alignment the output is V[0]."""
    call = attention(generator(), torch.bfloat16, (queries, 8), causal=True)
    assert not alarms(call)
    corner = torch.ones(queries, 8, dtype=torch.bool).tril()
    call.output = functional.scaled_dot_product_attention(
        call.q, call.k, call.v, attn_mask=corner, enable_gqa=True
    )
    assert alarms(call)


def test_a_window_that_is_off_by_one_is_seen() -> None:
    """One key too few, for one query: the weights are others."""
    mask = left_padded(12, (0, 0))
    call = attention(generator(), torch.float32, (12, 12), mask=mask)
    narrow = mask.clone()
    narrow[:, :, 11, 0] = False
    call.output = functional.scaled_dot_product_attention(
        call.q, call.k, call.v, attn_mask=narrow, enable_gqa=True
    )
    assert (attention_row_sum(call) > 1).nonzero().flatten().tolist() == [11, 23]


def test_heads_shared_the_wrong_way_are_seen() -> None:
    """Query heads 0 and 1 share key head 0; repeated in the other order they do not."""
    call = attention(generator(), torch.float32, (1, 8))
    call.output = functional.scaled_dot_product_attention(
        call.q, call.k.repeat(1, 2, 1, 1), call.v.repeat(1, 2, 1, 1)
    )
    assert alarms(call)


def test_a_key_page_of_another_request_is_seen() -> None:
    """The kernel read other keys than the call says: the row alarms, its neighbour does not."""
    call = attention(generator(), torch.float32, (1, 32), mask=paged_tail((20, 25), 32))
    foreign = call.k.clone()
    foreign[0, :, :16] = call.k[1, :, :16]
    call.output = functional.scaled_dot_product_attention(
        call.q, foreign, call.v, attn_mask=call.mask, enable_gqa=True
    )
    assert (attention_row_sum(call) > 1).tolist() == [True, False]


def test_a_nan_behind_the_mask_is_legal_while_it_does_not_leak() -> None:
    """Hidden values and keys may hold anything; what reaches the output may not."""
    call = attention(generator(), torch.float32, (1, 16), mask=paged_tail((3, 9), 16))
    call.v[0, :, 12], call.k[0, :, 13] = torch.nan, torch.nan
    assert not alarms(call)
    assert call.output is not None
    call.output[0, 0, 0, 0] = torch.nan
    assert alarms(call)


def test_a_returned_lse_is_held_to_the_scores() -> None:
    """An lse that is off moves every merge of split attention."""
    call = attention(generator(), torch.float32, (4, 9), causal=True, eager=True)
    assert call.lse is not None
    assert not alarms(call)
    call.lse[1, 2, 3] += 0.01
    assert (attention_row_sum(call) > 1).nonzero().flatten().tolist() == [7]


def test_long_prompts_are_spot_checked_with_the_last_query_among_them() -> None:
    """Cost stays bounded; a query that was not looked at says nothing."""
    call = attention(generator(), torch.float32, (64, 64), causal=True)
    few = attention_row_sum(call, scores_max=5)
    assert few.shape == (128,)
    assert bool((few <= 1).all())
    assert int(few.count_nonzero()) == 2 * 5
    assert call.output is not None
    call.output[1, 0, 63] += 1
    assert (attention_row_sum(call, scores_max=1) > 1).nonzero().flatten().tolist() == [127]


def test_every_position_of_a_long_prompt_has_its_turn() -> None:
    """Other prompts draw other queries; the same one draws the same, so that a run again agrees."""
    seen = torch.zeros(64, dtype=torch.bool)
    for seed in range(60):
        call = attention(generator(seed), torch.float32, (64, 64), causal=True)
        assert call.output is not None
        call.output += 1.0
        alarmed = attention_row_sum(call, scores_max=8.0) > 1
        assert torch.equal(alarmed, attention_row_sum(call, scores_max=8.0) > 1)
        assert int(alarmed.sum()) == 2 * 8
        seen |= alarmed.view(2, 64).any(dim=0)
    assert bool(seen.all())


def test_a_prompt_of_ordinary_length_is_looked_at_whole() -> None:
    """The declared limit: 64 tokens, or one of four in a prompt of 256."""
    call = attention(generator(), torch.float32, (64, 64), causal=True)
    assert call.output is not None
    call.output += 1.0
    assert bool((attention_row_sum(call) > 1).all())
    call = attention(generator(), torch.float32, (256, 256), causal=True)
    assert call.output is not None
    call.output += 1.0
    assert int((attention_row_sum(call) > 1).sum()) == 2 * 64


@pytest.mark.parametrize("huge", [1e6, 1e19, 3e38])
def test_no_size_of_a_wrong_output_widens_the_limit(huge: float) -> None:
    """Two opposite numbers keep the sum, a third one changes it: still seen."""
    call = attention(generator(), torch.float32, (1, 8))
    assert call.output is not None
    call.output[1, 0, 0, 0], call.output[1, 0, 0, 1] = huge, -huge
    call.output[1, 0, 0, 2] += 1
    assert alarms(call)
