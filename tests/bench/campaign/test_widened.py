"""Products of two-byte factors by way of float32: right, confined, and absent where not needed."""

import pytest
import torch
from torch.nn import functional

from tocsin.bench.campaign import widened


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_product_is_the_exact_one_rounded_once(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    """Small integers multiply exactly, so that every rounding of a partial sum would show."""
    monkeypatch.setattr(widened, "needed", lambda: True)
    source = torch.Generator().manual_seed(3)
    x = torch.randint(-9, 10, (5, 700), generator=source)
    weight = torch.randint(-9, 10, (31, 700), generator=source)
    with widened.widened_products() as changed:
        found = functional.linear(x.to(dtype), weight.to(dtype))
    assert changed
    assert found.dtype == dtype
    assert torch.equal(found, (x @ weight.T).to(dtype))


def test_float32_has_the_same_bits_inside_and_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Golden runs of a served model in float32 stay what they are."""
    monkeypatch.setattr(widened, "needed", lambda: True)
    x, weight = torch.randn(7, 300), torch.randn(40, 300)
    before = functional.linear(x, weight)
    with widened.widened_products():
        inside = functional.linear(x, weight)
    assert torch.equal(before, inside)
    assert torch.equal(before, functional.linear(x, weight))


def test_torch_is_its_own_again_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """An override that stayed would change every model of the process."""
    monkeypatch.setattr(widened, "needed", lambda: True)
    calls: list[int] = []
    original = widened._mm

    def counted(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return original(a, b)

    monkeypatch.setattr(widened, "_mm", counted)
    x, weight = torch.randn(2, 4), torch.randn(4, 3)
    with widened.widened_products():
        torch.mm(x, weight)
    torch.mm(x, weight)
    assert len(calls) == 1


def test_cpu_with_such_arithmetic_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own kernels are what is on trial."""
    monkeypatch.setattr(widened, "needed", lambda: False)
    with widened.widened_products() as changed:
        assert not changed
