"""How often each kind of fault is drawn: fixed beforehand, more where harm is to be expected.

Equal quotas spend most trials on bits that never change a token. These follow a pilot's rates of
harm (seed 99, other faults than any campaign's), coarsely, and no stratum has none. What was drawn
too often counts less: `statistics.weigh` takes every stratum back to its share of uniform bits.
"""

from functools import cache
from math import gcd

from tocsin.bench.campaign.sites import MODEL_SITES, PAGE_SITES, SITES
from tocsin.bench.campaign.words import (
    EXPONENT,
    EXPONENT_TOP,
    MANTISSA,
    MODELS,
    SIGN,
    STRATA,
)

TICKETS = {EXPONENT_TOP: 8, EXPONENT: 3, SIGN: 1, MANTISSA: 2}
"""Draws of a single-bit stratum in one round. Of a pilot's equal quotas were harmful, in fp32 and
bf16: 75 and 51 % at the exponent's first bit, 5 and 4 % at its others, 2 and 0 % at the sign, none
in 141 and 52 mantissas, which are most bits of a word and so are not drawn least."""

_WIDE = {(site, EXPONENT): 12 for site in ("residual", "logits", "cos_sin")}
"""Where the pilot found almost all harm of the exponent's other bits."""

_NONE = {("accumulator", "stripe")}
"""A single number has no 32nd element."""


def strata() -> tuple[tuple[str, str], ...]:
    """Every (site, bits); the further fault models at some of the sites."""
    single = [(site, bits) for site in SITES for bits in STRATA]
    further = [(site, bits) for site in MODEL_SITES for bits in MODELS if (site, bits) not in _NONE]
    return (*single, *further)


def tickets_of(site: str, bits: str) -> int:
    """Draws of a stratum in one round; the further models and stored pages are told apart."""
    return 1 if site in PAGE_SITES else _WIDE.get((site, bits), TICKETS.get(bits, 1))


@cache
def sequence() -> tuple[tuple[str, str], ...]:
    """One round: every stratum as often as it has tickets, spread so that each batch has all kinds.

    Its length has no factor in common with 2 and 3: what is done with a share of the batches
    (starts, `guard`, competitors) meets other strata each time.
    """
    drawn = [one for one in strata() for _ in range(tickets_of(*one))]
    while gcd(len(drawn), 6) > 1:
        drawn.append(drawn[0])
    stride = round(len(drawn) * _GOLDEN)
    while gcd(stride, len(drawn)) > 1:
        stride += 1
    return tuple(drawn[number * stride % len(drawn)] for number in range(len(drawn)))


_GOLDEN = 0.6180339887
"""Multiples of the golden ratio are the most evenly spread ones."""
