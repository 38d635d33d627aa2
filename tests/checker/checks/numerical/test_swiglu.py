"""`numerical.swiglu`: act(gate) * up, number by number."""

import pytest
import torch
from torch.nn import functional

from tests.checker.calls import DTYPES, generator, normal, swiglu
from tests.checker.changes import flip
from tocsin.checker.checks.numerical.swiglu import swiglu as check
from tocsin.core.calls import SwiGLUCall

EXPONENT = {torch.float16: 5, torch.bfloat16: 8, torch.float32: 8}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sign_exponent_and_upper_mantissa_bits_are_seen(dtype: torch.dtype) -> None:
    """Recomputing sees what sums cannot: the first mantissa bits in any dtype."""
    for bit in range(1 + EXPONENT[dtype] + 3):
        call = swiglu(generator(bit), dtype, 2, 64)
        assert call.output is not None
        flip(call.output, bit, 64 + int(call.output[1].abs().float().argmax()))
        assert (check(call) > 1).tolist() == [False, True] or torch.isnan(check(call)[1])


def test_a_product_that_overflows_float16_alarms() -> None:
    """vllm-project/vllm#22881: 255.875 * 261.75 is infinite in float16."""
    gate, up = torch.tensor([[255.875]]).half(), torch.tensor([[261.75]]).half()
    call = SwiGLUCall(gate=gate, up=up, output=functional.silu(gate) * up)
    assert bool(torch.isinf(check(call)).all())


def test_the_exact_and_the_tanh_gelu_are_told_apart() -> None:
    """Their difference of 3e-4 is far above what float32 rounds."""
    gate, up = normal(generator(), torch.float32, 4, 64), torch.ones(4, 64)
    call = SwiGLUCall(gate=gate, up=up, output=functional.gelu(gate), activation="gelu_tanh")
    assert not bool((check(call) <= 1).any())
    call.activation = "gelu"
    assert bool((check(call) <= 1).all())


def test_an_activation_that_is_not_known_is_not_checked() -> None:
    """Nothing to compare with is no verdict, neither good nor bad."""
    call = swiglu(generator(), torch.float32, 2, 8)
    call.activation = "relu2"
    assert check(call).numel() == 0
