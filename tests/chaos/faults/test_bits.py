"""Patches of live tensors: exact to the bit, in every dtype, and healed with care."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tocsin.chaos.bits import Patch, bits_of, chosen_bit, width

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_bit_flips_alone_and_flips_back(dtype: torch.dtype) -> None:
    """Each bit changes exactly itself, the sign included; undoing restores the tensor."""
    for bit in range(width(dtype)):
        tensor = torch.tensor([[1, 2], [3, 4]], dtype=torch.float32).to(dtype)
        clean = bits_of(tensor)
        patch = Patch.flip(tensor[1, 0], bit)
        difference = int((bits_of(tensor) ^ clean)[1, 0]) & ((1 << width(dtype)) - 1)
        assert patch.fired
        assert difference == 1 << bit
        assert int((bits_of(tensor) != clean).sum()) == 1
        assert not patch.gone()
        patch.undo()
        assert torch.equal(bits_of(tensor), clean)
        assert patch.gone()
        assert patch.undone()


@pytest.mark.parametrize("bit", [-1, 32, 1000])
def test_a_bit_that_the_dtype_lacks_is_refused(bit: int) -> None:
    """A wrong parameter raises instead of flipping something else."""
    with pytest.raises(ValueError, match=r"bits 0 to 31"):
        Patch.flip(torch.ones(1)[0], bit)


@given(raw=st.integers(0, 2**32 - 1), bit=st.integers(0, 31))
def test_a_flip_keeps_all_other_bits_of_any_number(raw: int, bit: int) -> None:
    """Also of NaN with a payload, of infinities and of denormals."""
    signed = raw - 2**32 if raw >= 2**31 else raw
    tensor = torch.tensor([signed], dtype=torch.int32).view(torch.float32)
    Patch.flip(tensor[0], bit)
    assert int(bits_of(tensor)) & (2**32 - 1) == raw ^ (1 << bit)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("value", [0.0, 0.01, -1.5, 2.0, -10.5, 1000.0])
def test_the_default_bit_makes_any_number_enormous(dtype: torch.dtype, value: float) -> None:
    """Small or large: the flip enlarges (a zero becomes 2), it never shrinks."""
    tensor = torch.tensor([value], dtype=dtype)
    Patch.flip(tensor[0], chosen_bit(None, tensor[0]))
    now = abs(tensor.item())
    assert now >= max(2.0, 16 * abs(value)) or now != now


def test_a_named_bit_is_taken_as_it_is() -> None:
    """The spec decides; integers have no exponent and lose the bit next to the sign."""
    assert chosen_bit(3, torch.ones(1)[0]) == 3
    assert chosen_bit(None, torch.ones(1, dtype=torch.int32)[0]) == 30


def test_a_patch_reaches_through_a_view_of_a_parameter() -> None:
    """Weights that require gradients and strided views are changed in place."""
    weight = torch.nn.Parameter(torch.ones(3, 4))
    patch = Patch.overwrite(weight.detach().t()[1], 5.0)
    assert weight[:, 1].tolist() == [5.0, 5.0, 5.0]
    patch.undo()
    assert weight.detach().eq(1).all()


def test_nan_is_seen_in_place_although_it_differs_from_itself() -> None:
    """Bits are compared, not values."""
    tensor = torch.zeros(2)
    patch = Patch.overwrite(tensor[0], float("nan"))
    assert not patch.gone()
    assert patch.words(patch.after).startswith("nan (0x")
    patch.undo()
    assert tensor.tolist() == [0.0, 0.0]


def test_a_zero_that_only_changes_its_sign_has_fired() -> None:
    """-0.0 equals 0.0 as a value and still is another reading."""
    assert Patch.flip(torch.zeros(1)[0], 31).fired


def test_what_was_overwritten_since_is_not_put_back() -> None:
    """A partly repaired region: the repaired part stays, the damaged part is restored."""
    tensor = torch.arange(4.0)
    patch = Patch.overwrite(tensor[1:], torch.tensor([7.0, 8.0, 9.0]))
    tensor[2] = 20.0
    assert not patch.gone()
    patch.undo()
    assert tensor.tolist() == [0.0, 1.0, 20.0, 3.0]
    assert patch.gone()
    assert not patch.undone()


def test_overwriting_with_the_same_value_has_not_fired() -> None:
    """Nothing changed, so nothing is claimed; nothing is in place either."""
    patch = Patch.overwrite(torch.ones(2), 1.0)
    assert not patch.fired
    assert patch.gone()


def test_words_of_a_region_are_short_and_tell_contents_apart() -> None:
    """Evidence travels: a whole slot is said as a digest of its bits."""
    patch = Patch.overwrite(torch.zeros(100), torch.randn(100))
    before, after = patch.words(patch.before), patch.words(patch.after)
    assert before == "100 values, digest 0x0000000000000000"
    assert before != after
    assert len(after) < 60


def test_a_place_struck_under_inference_mode_heals_outside_of_it() -> None:
    """An engine steps under inference mode; leases end on other threads, outside of it."""
    pool = torch.ones(4)
    with torch.inference_mode():
        made_there = torch.ones(4)
        patches = [Patch.flip(tensor[1], 30) for tensor in (pool, made_there)]
    for patch in patches:
        patch.undo()
        assert patch.undone()
    assert pool.tolist() == [1.0, 1.0, 1.0, 1.0]


def test_rows_that_change_places_are_a_change() -> None:
    """A sum that does not know places would say that the fault did not fire."""
    rows = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    patch = Patch.overwrite(rows, rows.flip(0).clone())
    assert patch.fired
    assert patch.words(patch.before) != patch.words(patch.after)
