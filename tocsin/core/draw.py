"""Keyed randomness: every decision draws from its own stream, so removing one moves no other."""

import hashlib
import math
from collections.abc import Sequence
from typing import TypeVar

Item = TypeVar("Item")


def draw_u64(seed: int, *key: object) -> int:
    """64 uniform bits that depend on the seed and the key alone (BLAKE2b)."""
    text = "\x1f".join(str(part) for part in key).encode()
    digest = hashlib.blake2b(text, digest_size=8, key=seed.to_bytes(16, "little", signed=True))
    return int.from_bytes(digest.digest(), "little")


def draw_unit(seed: int, *key: object) -> float:
    """A float in [0, 1) with 53 random bits."""
    return (draw_u64(seed, *key) >> 11) / float(1 << 53)


def draw_below(bound: int, seed: int, *key: object) -> int:
    """An integer in [0, bound).

    Raises:
        ValueError: `bound` is not positive.
    """
    if bound <= 0:
        raise ValueError(f"draw_below: bound is {bound}, expected a positive integer")
    return int(draw_unit(seed, *key) * bound)


def draw_choice(items: Sequence[Item], seed: int, *key: object) -> Item:
    """One of the items."""
    return items[draw_below(len(items), seed, *key)]


def draw_exponential(mean: float, seed: int, *key: object) -> float:
    """An exponentially distributed float, for Poisson arrivals."""

    return -mean * math.log(1.0 - draw_unit(seed, *key))
