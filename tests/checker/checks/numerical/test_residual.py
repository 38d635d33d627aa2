"""`numerical.residual`: the stream is what it was plus what was added."""

import pytest
import torch

from tests.checker.calls import DTYPES, generator, residual
from tests.checker.changes import flip
from tocsin.checker import native
from tocsin.checker.checks.numerical.residual import residual as check
from tocsin.core.calls import ResidualCall


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_all_bits_but_the_last_two_are_seen(dtype: torch.dtype) -> None:
    """An exact recomputation leaves next to nothing unseen, in any number of the row."""
    width = torch.finfo(dtype).bits
    for bit in range(width - 2):
        call = residual(generator(bit), dtype, 2, 64)
        assert call.output is not None
        flip(call.output, bit, 64 + bit)
        assert not bool(check(call)[1] <= 1), bit
        assert bool(check(call)[0] <= 1)


def test_a_stream_in_float32_takes_a_delta_in_bfloat16() -> None:
    """Mixed streams are legal: the sum is held to the output's dtype."""
    x, delta = torch.randn(3, 8), torch.randn(3, 8).bfloat16()
    assert bool((check(ResidualCall(x=x, delta=delta, output=x + delta)) <= 1).all())


def test_cancellation_is_not_an_alarm() -> None:
    """The nearest miss: x + (-x + a little) is exact, however small it is."""
    x = torch.randn(3, 8).bfloat16()
    delta = (-x.float() * (1 + 2**-7)).bfloat16()
    assert bool((check(ResidualCall(x=x, delta=delta, output=x + delta)) <= 1).all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_terms_that_were_not_rounded_are_let_pass_where_that_is_said(dtype: torch.dtype) -> None:
    """As a compiler adds them: one rounding of each term, natively as well, and not four."""
    wide = torch.randn(4, 512, generator=generator(5))
    x = wide.to(dtype)
    exact = 1e-3 * wide - x.float()  # sums that nearly cancel
    delta, output = exact.to(dtype), (x.float() + exact).to(dtype)
    call = ResidualCall(x=x, delta=delta, output=output)
    assert bool((check(call) > 1).all())
    fused = check(call, terms_ulp=1.0)
    assert bool((fused <= 1).all())
    if native.available():
        found = torch.ops.tocsin.residual([x], [delta], [output], terms_ulp=1.0)
        torch.testing.assert_close(found[0, 0], fused)
    output[2, 7] += 4 * torch.finfo(dtype).eps * x[2, 7].abs()
    assert (check(call, terms_ulp=1.0) > 1).tolist() == [False, False, True, False]
