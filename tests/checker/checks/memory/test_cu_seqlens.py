"""`memory.cu_seqlens`: lengths that describe the tensors."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import tocsin
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
    ratio = cu_seqlens(metadata(cu, longest, total))
    assert ratio.shape == (max(1, len(cu) - 1),)
    assert not ratio.any()


@pytest.mark.parametrize(
    ("cu", "longest", "total", "rows"),
    [
        ([1, 4, 9], 5, 9, [0, 1]),
        ([0, 5, 4, 9], 5, 9, [0, 1, 2]),
        ([0, 3, 5, 4, 9, 10], 5, 10, [1, 2, 3]),
        ([0, 5, 4], 5, None, [0, 1]),
        ([0, 4, 8], 5, 9, [0, 1]),
        ([0, 4, 10], 6, 9, [0, 1]),
        ([0, 9], 8, 9, [0]),
        ([0, -9], 9, 9, [0]),
        ([0, 4, 9], 4, None, [1]),
        ([0, 4, 10, 12], 5, 12, [1]),
        ([4], 5, 4, [0]),
        ([0], 5, 4, [0]),
    ],
    ids=(
        *("late", "falling", "falling among others", "falling at the end", "short", "beyond"),
        *("longest too small", "wrapped", "row too long", "middle row too long"),
        *("nobody, late", "nobody, short"),
    ),
)
def test_alarms_on(cu: list[int], longest: int, total: int | None, rows: list[int]) -> None:
    """Dao-AILab/flash-attention#1773: each of these raises nothing in the kernel.

    A row that cannot be right is named, with those that share its ends; where any row may be the
    cause, all are.
    """
    ratio = cu_seqlens(metadata(cu, longest, total))
    assert ratio.isinf().nonzero().flatten().tolist() == rows
    assert set(ratio.tolist()) <= {0.0, float("inf")}


LENGTHS = (5, 7, 1, 12)


def known(side: str = "k") -> VarlenAttentionCall:
    """Four rows whose lengths the ledger told, one query each."""
    call = metadata([0, 5, 12, 13, 25], 12, 25)
    setattr(call, f"lengths_{side}_expected", torch.tensor(LENGTHS))
    return call


def put(cu: list[int]) -> Callable[[Tensor], None]:
    return lambda held: held.copy_(torch.tensor(cu))


def moved(row: int, by: int) -> Callable[[Tensor], None]:
    """One length off; the rows behind it keep theirs, and the total is off as well."""
    return lambda held: held[row + 1 :].add_(by)


@pytest.mark.parametrize("side", ["q", "k"])
@pytest.mark.parametrize(
    ("fault", "rows"),
    [
        *[pytest.param(moved(row, -1), [row], id=f"stale row {row}") for row in range(4)],
        *[pytest.param(moved(row, 1), [row], id=f"ahead row {row}") for row in range(4)],
        pytest.param(moved(1, -6), [1], id="first key only"),
        pytest.param(moved(2, -1), [2], id="no key left"),
        pytest.param(put([0, 7, 12, 13, 25]), [0, 1], id="two rows swapped"),
        pytest.param(put([0, 1, 8, 13, 25]), [0, 2], id="first and third swapped"),
        pytest.param(put([0, 5, 12, 14, 25]), [2, 3], id="an end moved, the total right"),
        pytest.param(put([0, 5, 4, 13, 25]), [1, 2], id="falling"),
        pytest.param(put([0, 5, 12, 13, -25]), [3], id="wrapped"),
        pytest.param(put([1, 6, 13, 14, 26]), [0, 1, 2, 3], id="starts late"),
        pytest.param(put([2, 5, 12, 13, 25]), [0, 1, 2, 3], id="starts late, first row short"),
    ],
)
def test_names_the_row_whose_length_is_not_the_ledger_s(
    side: str, fault: Callable[[Tensor], None], rows: list[int]
) -> None:
    """Exactly the rows that are wrong: those behind a stale length keep their own."""
    call = known(side)
    assert not cu_seqlens(call).any()
    fault(getattr(call, f"cu_seqlens_{side}"))
    setattr(call, "total_k" if side == "q" else "total_q", None)
    ratio = cu_seqlens(call)
    assert ratio.dtype is torch.float32
    assert ratio.isinf().nonzero().flatten().tolist() == rows


def test_a_longest_row_that_is_too_small_names_the_rows_beyond_it() -> None:
    """Their last keys are lost without an error."""
    call = known()
    call.max_seqlen_k = 6
    assert cu_seqlens(call).isinf().nonzero().flatten().tolist() == [1, 3]


def test_a_ledger_of_another_total_than_the_tensors_names_all() -> None:
    """Lengths agree with each other, and not with what is launched."""
    call = known()
    call.total_k = 24
    assert cu_seqlens(call).isinf().all()


@pytest.mark.parametrize(
    "expected",
    [torch.tensor(LENGTHS[:3]), torch.tensor([LENGTHS]), torch.tensor(LENGTHS).float(), [5, 7]],
    ids=("a row less", "two axes", "floats", "no tensor"),
)
def test_a_ledger_of_another_form_is_an_alarm_of_the_call(expected: object) -> None:
    """Nothing to compare with is never fine."""
    call = known()
    call.lengths_k_expected = expected  # type: ignore[assignment]
    assert cu_seqlens(call).tolist() == [float("inf")]


def test_lengths_of_other_rows_than_the_step_s_name_nobody() -> None:
    """The verdict buffer would take them for rows of the step."""
    call = metadata([0, 4, 10, 12, 12], 5, 12)
    for rows, size in ((4, 4), (2, 1), (8, 1)):
        call.rows = rows
        ratio = cu_seqlens(call)
        assert ratio.shape == (size,)
        assert ratio.amax().item() == float("inf")


def test_a_finding_names_the_row() -> None:
    """What a person reads says whose length it is."""
    fields = {
        name: getattr(metadata([0, 4, 10, 12], 5, 12), name)
        for name in ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
    }
    (found,) = tocsin.inspect("flash_attn_varlen", total_q=12, total_k=12, **fields).findings
    assert (found.check, found.rows) == ("memory.cu_seqlens", (1,))


def test_tensors_say_the_total_where_they_are_known() -> None:
    """A total that came along is not trusted over the tensor itself."""
    call = varlen(generator(), torch.float32, (2, 3), (4, 5), "q k v")
    call.total_k = 7
    assert not cu_seqlens(call).any()
    assert call.k is not None
    assert call.v is not None
    call.k, call.v = call.k[:-1], call.v[:-1]
    assert cu_seqlens(call).tolist() == [float("inf")] * 2


@pytest.mark.parametrize("longest", [True, 4.0, -1, None])
def test_a_longest_row_that_is_no_length_alarms(longest: object) -> None:
    """Whatever a caller passes, the answer is an alarm and no exception."""
    call = metadata([0, 4], 4, 4)
    call.max_seqlen_k = longest  # type: ignore[assignment]
    assert cu_seqlens(call).item() == float("inf")
