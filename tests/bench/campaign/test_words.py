"""A fault of a word changes the bits that its stratum or model says, and nothing else."""

from collections.abc import Callable

import pytest
import torch

from tocsin.bench.campaign.sites import Fault
from tocsin.bench.campaign.words import (
    CARRY,
    MULTI,
    STRATA,
    STRIPE,
    bits_of,
    corrupt,
    corrupted,
    share_of,
)
from tocsin.core.errors import ContractError

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
WORDS = {4: torch.int32, 2: torch.int16}


def below(key: str) -> Callable[[int, str], int]:
    return Fault("", "", 0, 1, key).below


@pytest.mark.parametrize("dtype", DTYPES)
def test_strata_hold_every_bit_once(dtype: torch.dtype) -> None:
    """No bit is left out and none counts twice, so the shares add up to one."""
    bits = [bit for stratum in STRATA for bit in bits_of(dtype, stratum)]
    assert sorted(bits) == list(range(dtype.itemsize * 8))
    assert sum(share_of(dtype, stratum) for stratum in STRATA) == pytest.approx(1.0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bits", STRATA)
def test_a_flip_changes_one_bit_of_its_stratum(dtype: torch.dtype, bits: str) -> None:
    """Exactly one bit of exactly one element, also in a strided view."""
    for number in range(12):
        values = torch.linspace(-2, 2, 40).to(dtype)[::2]
        before = values.clone()
        change = corrupt(values, 7, bits, below(f"{number}"))
        word = WORDS[dtype.itemsize]
        differing = (values.view(word) ^ before.view(word)).tolist()
        assert [index for index, bit in enumerate(differing) if bit] == [7]
        mask = differing[7] % (1 << dtype.itemsize * 8)
        assert mask in [1 << bit for bit in bits_of(dtype, bits)]
        assert change.fired


def test_a_multi_bit_fault_flips_two_to_four_bits() -> None:
    """All counts occur, and the bits are different ones."""
    counts = set()
    for number in range(60):
        change = corrupted(torch.tensor(1.5), MULTI, below(f"{number}"))[1]
        counts.add(((change.before ^ change.after) % (1 << 32)).bit_count())
    assert counts == {2, 3, 4}


def test_a_carry_error_adds_a_power_of_two_in_the_last_place() -> None:
    """The integer difference of the words is ±2^k."""
    signs = set()
    for number in range(40):
        change = corrupted(torch.tensor(0.3), CARRY, below(f"{number}"))[1]
        distance = change.after - change.before
        signs.add(distance > 0)
        assert abs(distance).bit_count() == 1
    assert signs == {True, False}


def test_a_stripe_hits_every_32nd_element_with_the_same_bit() -> None:
    """Warp-aligned: elements 5, 37, 69 and 101 of 128, the others stay."""
    values = torch.linspace(1, 2, 128)
    before = values.clone()
    corrupt(values, 37, STRIPE, below("stripe"))
    masks = (values.view(torch.int32) ^ before.view(torch.int32)).tolist()
    assert [index for index, mask in enumerate(masks) if mask] == [5, 37, 69, 101]
    assert len({masks[index] for index in (5, 37, 69, 101)}) == 1


def test_an_unknown_stratum_is_named() -> None:
    """A wrong word would otherwise be a fault of no bit."""
    with pytest.raises(ContractError, match="expected one of"):
        bits_of(torch.float32, "tail")
