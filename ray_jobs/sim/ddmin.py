"""Delta debugging: the smallest part of a list, and the smallest number, that still fails.

Source: Zeller and Hildebrandt, Simplifying and Isolating Failure-Inducing Input, IEEE TSE 28(2).
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeVar

Item = TypeVar("Item")


def minimal_part(items: Sequence[Item], fails: Callable[[Sequence[Item]], bool]) -> list[Item]:
    """A part that fails and no longer does when any one item is taken out.

    Args:
        items: all of them together fail.
        fails: asked of parts, in the order of `items`; may be asked of one part again.
    """
    if not items or fails([]):
        return []
    left, pieces = list(items), 2
    while len(left) > 1:
        parts = _split(left, pieces)
        rests = [_without(parts, i) for i in range(len(parts))] if pieces > 2 else []
        smaller = next((part for part in parts if fails(part)), None)
        if smaller is not None:
            left, pieces = smaller, 2
            continue
        smaller = next((rest for rest in rests if fails(rest)), None)
        if smaller is not None:
            left, pieces = smaller, max(2, pieces - 1)
        elif pieces == len(left):
            break
        else:
            pieces = min(len(left), 2 * pieces)
    return left


def least(value: int, fails: Callable[[int], bool]) -> int:
    """The smallest number from 1 that fails, where all above it do; else one that fails.

    Args:
        value: fails.
    """
    low, high = 1, value
    if high > low and fails(low):
        return low
    while high - low > 1:
        middle = (low + high) // 2
        if fails(middle):
            high = middle
        else:
            low = middle
    return high


def _split(items: Sequence[Item], pieces: int) -> list[list[Item]]:
    ends = [len(items) * i // pieces for i in range(pieces + 1)]
    return [list(items[a:b]) for a, b in pairwise(ends)]


def _without(parts: Sequence[Sequence[Item]], left_out: int) -> list[Item]:
    return [item for i, part in enumerate(parts) if i != left_out for item in part]
