"""Faults of stored words: which bits of a value change, and the change made in place."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tocsin.core.errors import ContractError

SIGN, EXPONENT_TOP, EXPONENT, MANTISSA = "sign", "exponent_top", "exponent", "mantissa"
STRATA = (SIGN, EXPONENT_TOP, EXPONENT, MANTISSA)
"""Strata of single-bit faults; their rates are weighed back to a uniform bit. The exponent's first
bit stands alone: most of what does harm is there."""

MULTI, CARRY, STRIPE = "multi", "carry", "stripe"
MODELS = (MULTI, CARRY, STRIPE)
"""Further fault models, reported apart: 2-4 bits of one word, an addition of ±2^k units in the
last place, one bit of every 32nd element (warp-aligned, arXiv:2605.04213)."""

STRIPE_PERIOD = 32
_WORDS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
_MANTISSA_BITS = {
    torch.float32: 23,
    torch.float16: 10,
    torch.bfloat16: 7,
    torch.float64: 52,
}

Below = Callable[[int, str], int]
"""`(bound, name) -> an integer in [0, bound)`, a stream of its own for each name."""


@dataclass(frozen=True, slots=True)
class Change:
    """A word before and after; a fault whose words are equal did not fire."""

    before: int
    after: int

    @property
    def fired(self) -> bool:
        """The word reads otherwise than before."""
        return self.before != self.after


def bits_of(dtype: torch.dtype, stratum: str) -> range:
    """Bit numbers of a stratum, 0 is the last bit of the mantissa.

    Raises:
        ContractError: a dtype or stratum without bits of its own.
    """
    mantissa, width = _MANTISSA_BITS.get(dtype), dtype.itemsize * 8
    if mantissa is None or stratum not in STRATA:
        raise ContractError(
            f"words: found {dtype} and {stratum!r}, expected one of {list(_MANTISSA_BITS)} and one "
            f"of {STRATA}; choose from these"
        )
    if stratum == MANTISSA:
        return range(mantissa)
    if stratum == EXPONENT:
        return range(mantissa, width - 2)
    first = width - 1 if stratum == SIGN else width - 2
    return range(first, first + 1)


def share_of(dtype: torch.dtype, stratum: str) -> float:
    """Probability that a uniformly chosen bit of a word lies in the stratum."""
    return len(bits_of(dtype, stratum)) / (dtype.itemsize * 8)


def corrupt(values_D: Tensor, index: int, bits: str, below: Below) -> Change:
    """Change one element (for a stripe: every 32nd through it) of a vector in place.

    Args:
        values_D: a floating vector, possibly a strided view.
        index: of the element.
        bits: a stratum or a further fault model.
        below: draws bits.

    Returns:
        the element's word before and after.
    """
    word_type = _WORDS[values_D.element_size()]
    width = values_D.element_size() * 8
    words = values_D.view(word_type)
    before = int(words[index])
    if bits == CARRY:
        step = 1 << below(width - 2, "carry")
        words[index] += step if below(2, "direction") else -step  # wraps around, as an adder does
    elif bits == STRIPE:
        words[index % STRIPE_PERIOD :: STRIPE_PERIOD] ^= _mask((below(width, "bit"),), width)
    else:
        words[index] ^= _mask(_chosen(values_D.dtype, bits, below), width)
    return Change(before, int(words[index]))


def corrupted(value: Tensor, bits: str, below: Below) -> tuple[Tensor, Change]:
    """A changed copy of one number, for places that only exist inside an operator."""
    copy = value.detach().reshape(1).clone()
    change = corrupt(copy, 0, bits, below)
    return copy[0], change


def _chosen(dtype: torch.dtype, bits: str, below: Below) -> tuple[int, ...]:
    """Bits to flip; of several, all different."""
    if bits != MULTI:
        candidates = bits_of(dtype, bits)
        return (candidates[below(len(candidates), "bit")],)
    left = list(range(dtype.itemsize * 8))
    return tuple(
        left.pop(below(len(left), f"bit {number}")) for number in range(2 + below(3, "count"))
    )


def _mask(bits: tuple[int, ...], width: int) -> int:
    """The bits as a signed integer of the word's width."""
    mask = sum(1 << bit for bit in bits)
    return mask - (1 << width) if mask >> (width - 1) else mask
