"""`memory.cu_seqlens`: lengths that describe the tensors."""

import pytest
import torch

from tests.checker.calls import generator, varlen
from tocsin.checker.checks.memory.cu_seqlens import cu_seqlens
from tocsin.core.calls import VarlenAttentionCall


def metadata(cu: list[int], longest: int, total: int | None) -> VarlenAttentionCall:
    lengths = torch.tensor(cu, dtype=torch.int32)
    return VarlenAttentionCall(
        cu_seqlens_q=lengths,
        cu_seqlens_k=lengths.clone(),
        max_seqlen_q=longest,
        max_seqlen_k=longest,
        total_q=total,
        total_k=total,
    )


@pytest.mark.parametrize(
    ("cu", "longest", "total"),
    [
        ([0], 0, 0),
        ([0, 0], 0, 0),
        ([0, 0, 4, 4, 9], 5, 9),
        ([0, 9], 9, None),
        ([0, 4, 9], 512, 9),
    ],
    ids=("nobody", "an empty row", "empty rows between", "total unknown", "an upper bound"),
)
def test_is_silent_on(cu: list[int], longest: int, total: int | None) -> None:
    """The nearest misses: empty rows, and a longest row that is only bounded."""
    assert cu_seqlens(metadata(cu, longest, total)).item() == 0


@pytest.mark.parametrize(
    ("cu", "longest", "total"),
    [
        ([1, 4, 9], 5, 9),
        ([0, 5, 4, 9], 5, 9),
        ([0, 4, 8], 5, 9),
        ([0, 4, 10], 6, 9),
        ([0, 9], 8, 9),
        ([0, -9], 9, 9),
        ([0, 4, 9], 4, None),
    ],
    ids=("late", "falling", "short", "beyond", "longest too small", "wrapped", "row too long"),
)
def test_alarms_on(cu: list[int], longest: int, total: int | None) -> None:
    """Dao-AILab/flash-attention#1773: each of these raises nothing in the kernel."""
    assert cu_seqlens(metadata(cu, longest, total)).item() == float("inf")


def test_tensors_say_the_total_where_they_are_known() -> None:
    """A total that came along is not trusted over the tensor itself."""
    call = varlen(generator(), torch.float32, (2, 3), (4, 5), "q k v")
    call.total_k = 7
    assert cu_seqlens(call).item() == 0
    assert call.k is not None
    assert call.v is not None
    call.k, call.v = call.k[:-1], call.v[:-1]
    assert cu_seqlens(call).item() == float("inf")


@pytest.mark.parametrize("longest", [True, 4.0, -1, None])
def test_a_longest_row_that_is_no_length_alarms(longest: object) -> None:
    """Whatever a caller passes, the answer is an alarm and no exception."""
    call = metadata([0, 4], 4, 4)
    call.max_seqlen_k = longest  # type: ignore[assignment]
    assert cu_seqlens(call).item() == float("inf")
