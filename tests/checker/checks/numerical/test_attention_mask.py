"""`numerical.attention_mask`: every live query sees something, and the mask means what it says."""

import pytest
import torch

from tests.checker.calls import additive, attention, generator, left_padded, paged_tail
from tocsin.checker.checks.numerical.attention_mask import attention_mask
from tocsin.core.calls import AttentionCall


def masked(mask: torch.Tensor, queries: int, keys: int, rows: int = 2) -> AttentionCall:
    call = attention(generator(), torch.float32, (queries, keys), rows=rows)
    call.mask, call.output = mask, None
    return call


def test_left_padding_is_legal_in_every_form() -> None:
    """bool, -inf, the lowest number and -1e4 say the same thing."""
    mask = left_padded(6, (4, 0))
    for form in (mask, *(additive(mask, f) for f in (float("-inf"), -3.4e38, -1e4))):
        assert bool((attention_mask(masked(form, 6, 6)) <= 1).all())


def test_a_real_token_without_keys_alarms_for_its_row() -> None:
    """sgl-project/sglang#1571: the others of its row attend to its key, so it is no padding."""
    mask = left_padded(6, (0, 0))
    mask[1, 0, 3] = False
    assert (attention_mask(masked(mask, 6, 6)) > 1).nonzero().flatten().tolist() == [9]


def test_the_last_token_without_keys_alarms() -> None:
    """It makes the next token: nothing behind it can excuse it as padding."""
    mask = left_padded(6, (0, 2))
    mask[1, 0, 5] = False
    assert (attention_mask(masked(mask, 6, 6)) > 1).nonzero().flatten().tolist() == [11]


def test_a_decode_row_without_keys_alarms() -> None:
    """-1 as a length hides every key of the row."""
    mask = paged_tail((3, -1, 15), 16)
    assert (attention_mask(masked(mask, 1, 16, 3)) > 1).tolist() == [False, True, False]


@pytest.mark.parametrize("pads", [(0, 0), (3, 1)])
def test_a_mask_turned_around_alarms(pads: tuple[int, int]) -> None:
    """huggingface/transformers#32195: 1 = hidden instead of 1 = visible."""
    assert not bool((attention_mask(masked(~left_padded(6, pads), 6, 6)) <= 1).all())


def test_ones_and_zeros_added_to_scores_alarm() -> None:
    """A 0/1 mask in a float dtype shifts scores by one and hides nothing."""
    assert not bool((attention_mask(masked(left_padded(6, (0, 0)).float(), 6, 6)) <= 1).any())


def test_a_mask_of_zeros_and_a_distance_bias_are_legal() -> None:
    """The nearest misses: an additive mask without effect, and ALiBi."""
    assert bool((attention_mask(masked(torch.zeros(1, 1, 6, 6), 6, 6)) <= 1).all())
    distance = (torch.arange(6)[None] - torch.arange(6)[:, None]).clamp(max=0) * 0.5
    call = masked(distance.float(), 6, 6)
    call.causal = True
    assert bool((attention_mask(call) <= 1).all())


def test_a_sliding_window_and_a_bidirectional_prefix_are_legal() -> None:
    """Counts of keys may stay, as long as they do not fall from query to query."""
    window = left_padded(8, (0, 0)).squeeze(1) & torch.ones(8, 8, dtype=torch.bool).triu(-2)
    assert bool((attention_mask(masked(window[:, None], 8, 8)) <= 1).all())
    prefix = left_padded(8, (0, 0))
    prefix[:, :, :4, :4] = True
    assert bool((attention_mask(masked(prefix, 8, 8)) <= 1).all())


def test_padding_that_was_written_alarms() -> None:
    """Nobody reads it now, but a cache that keeps it will."""
    call = attention(generator(), torch.float32, (6, 6), mask=left_padded(6, (3, 0)))
    assert bool((attention_mask(call) <= 1).all())
    assert call.output is not None
    call.output[0, 1, 2, 0] = 1e-3
    assert (attention_mask(call) > 1).nonzero().flatten().tolist() == [2]


def test_without_a_mask_there_is_nothing_to_check() -> None:
    """No mask, no causality: every key is meant."""
    assert attention_mask(attention(generator(), torch.float32)).numel() == 0
    assert bool(
        (attention_mask(attention(generator(), torch.float32, (1, 9), causal=True)) <= 1).all()
    )
