"""Content sums of rows of 64-bit words: a changed or displaced word changes them."""

from functools import cache

import torch
from torch import Tensor


def word_sums(rows: Tensor) -> Tensor:
    """Sum of each row's 64-bit words, each times an odd number of its own, modulo 2^64.

    Odd factors lose no bit of any word, and unequal ones tell which word is where: two that
    change places change the sum.

    Args:
        rows: [...,width] contiguous, a whole number of words each.

    Returns:
        [...] int64.
    """
    words = rows.view(torch.int64)
    factors = _odd_numbers(words.shape[-1], words.device)
    if words.device.type == "cpu":  # one pass; elsewhere there is no product of integer matrices
        return words.reshape(-1, words.shape[-1]).mv(factors).view(words.shape[:-1])
    return (words * factors).sum(dim=-1)


@cache
def _odd_numbers(count: int, device: torch.device) -> Tensor:
    with torch.inference_mode(mode=False):
        return 2 * torch.arange(count, device=device) + 1
