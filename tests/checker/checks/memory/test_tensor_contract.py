"""`memory.tensor_contract`: form before values."""

import pytest
import torch

from tests.checker.calls import attention, generator, kv_update, linear, rope
from tocsin.checker.checks.memory.tensor_contract import tensor_contract
from tocsin.checker.structure import problem
from tocsin.core.calls import LinearCall


def test_fused_projections_are_legal_views() -> None:
    """thu-ml/SageAttention#386 the right way round: strided rows, contiguous features."""
    fused = torch.randn(2, 5, 3 * 4 * 8).view(2, 5, 3, 4, 8).permute(2, 0, 3, 1, 4)
    call = attention(generator(), torch.float32, (5, 5), heads=(4, 4), size=8)
    call.q, call.k, call.v, call.output = fused[0], fused[1], fused[2], None
    assert tensor_contract(call).item() == 0


def test_autocast_may_mix_dtypes_and_nobody_else() -> None:
    """Under autocast the kernel sees equal dtypes; without it F.linear would raise."""
    call = LinearCall(x=torch.randn(2, 4), weight=torch.randn(3, 4).bfloat16())
    assert tensor_contract(call).item() == float("inf")
    assert problem(call) == "dtypes differ: x float32, weight bfloat16; expected one"
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert tensor_contract(call).item() == 0


def test_another_device_alarms() -> None:
    """flashinfer-ai/flashinfer#924: an operand of another device is an illegal access."""
    call = linear(generator(), torch.float32, (2, 4), 3)
    call.weight = call.weight.to("meta")
    assert "weight is on meta" in problem(call)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cos": torch.zeros(2, 5, 15)}, "cos is [2, 5, 15]"),
        ({"sin": torch.zeros(2, 4, 16)}, "sin [2, 4, 16]"),
        ({"position_ids": torch.zeros(2, 4, dtype=torch.int64)}, "position_ids is [2, 4]"),
        ({"k_out": torch.zeros(2, 2, 5, 8)}, "k_out is [2, 2, 5, 8]"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_says_in_words_what_is_wrong(change: dict[str, torch.Tensor], words: str) -> None:
    """A finding names the operand, what it is and what was expected."""
    call = rope(generator(), torch.float32, torch.arange(5)[None].expand(2, 5))
    for name, value in change.items():
        setattr(call, name, value)
    assert words in problem(call)
    assert "expected" in problem(call)


def test_tokens_without_rows_need_to_be_told_apart() -> None:
    """Seven tokens for two rows are not so many each."""
    call = kv_update(generator(), torch.float32, (4, 4), 2)
    for name in ("new_key", "new_value", "slot_mapping", "position_ids"):
        setattr(call, name, getattr(call, name)[:3])
    assert "pass token_rows" in problem(call)
    call.token_rows = torch.tensor([0, 0, 1])
    assert problem(call) == ""
