"""Shrinking keeps the failure, keeps its reason, and leaves almost nothing else."""

from typing import Any

import pytest
import torch

from tests.checker import calls as makers
from tests.checker.calls import generator
from tests.checker.changes import Fault, Place, flip, fresh
from tests.checker.faulty import FAULTS
from tests.checker.reproduction.realistic import REALISTIC
from tests.checker.valid import VALID
from tocsin.checker.contract import registry
from tocsin.checker.reproduction.axes import elements
from tocsin.checker.shrink import read, shrink
from tocsin.core.calls import Call, LinearCall, RMSNormCall, VarlenAttentionCall

_CASES = [
    pytest.param(check, place, fault, id=f"{check}: {name}")
    for check, faults in FAULTS.items()
    for name, (place, fault) in faults.items()
    if name != "deep"  # one text of 100,000 brackets takes two seconds
]


def _failing(place: Place, fault: Fault, dtype: torch.dtype = torch.bfloat16) -> Call:
    call = fresh(VALID[place[0]][place[1]](generator(), dtype))
    fault(call)
    return call


def _same(one: Call, other: Call) -> bool:
    for name in type(one).__dataclass_fields__:
        mine, its = getattr(one, name), getattr(other, name)
        if isinstance(mine, torch.Tensor):
            if not torch.equal(mine.nan_to_num(7.0), its.nan_to_num(7.0)):
                return False
        elif mine != its and mine == mine:
            return False
    return True


@pytest.mark.parametrize(("check", "place", "fault"), _CASES)
def test_the_minimal_call_fails_the_same_check_for_the_same_reason(
    check: str, place: Place, fault: Fault
) -> None:
    """Also: it is no larger, a person can read it, and the recorded call was not touched.

    A call that fails only because it is smaller would have a twin that fails as well.
    """
    unit = registry()[check]
    call = _failing(place, fault)
    before, first = fresh(call), read(unit, call)
    made = shrink(unit, call)
    after = read(unit, made.call)
    # Sums of the write come on top of what an attention call has anyway.
    most = 80 if getattr(call, "key_sums", None) is None else 128
    assert after.fails
    assert after.reasons == first.reasons
    assert made.after == elements(made.call) <= min(elements(call), most)
    assert made.twin is None or not read(unit, made.twin).fails
    assert _same(call, before)


@pytest.mark.parametrize("name", REALISTIC)
def test_a_served_shape_shrinks_to_a_hundredth(name: str) -> None:
    """The goal: at most 1/100 of the tensor elements, on shapes that a served model has."""
    check, make = REALISTIC[name]
    unit = registry()[check]
    call = make()
    made = shrink(unit, call)
    assert read(unit, made.call).fails
    assert made.after * 100 <= made.before, (made.before, made.after)


@pytest.mark.parametrize("name", ["a stale length", "lengths that end short"])
def test_of_a_packed_batch_one_short_row_is_left(name: str) -> None:
    """Each row has a ratio of its own, and those of rows that were in order are cut."""
    check, make = REALISTIC[name]
    small = shrink(registry()[check], make()).call
    assert isinstance(small, VarlenAttentionCall)
    assert small.cu_seqlens_k.shape == (2,)
    assert small.total_k is not None
    assert small.total_k > int(small.cu_seqlens_k[-1])
    if name == "a stale length":
        assert small.lengths_k_expected is not None
        assert small.lengths_k_expected.tolist() == [small.total_k]


def test_a_recorded_output_does_not_fail_merely_because_columns_are_cut() -> None:
    """A product cut in its inner axis is another product: the output must follow."""
    call: Any = makers.linear(generator(), torch.float32, (4, 64), 130)
    flip(call.output, 0)
    made = shrink(registry()["numerical.linear_checksum"], call)
    small = made.call
    assert isinstance(small, LinearCall)
    assert small.output is not None
    assert made.twin is not None
    assert small.x.shape[-1] < 64
    wrong = small.output != made.twin.output  # type: ignore[attr-defined]
    assert int(wrong.sum()) == 1, "one number was flipped, one number deviates"


def test_half_precision_is_kept_where_the_fault_is_one_of_its_range() -> None:
    """1e5 is infinite in float16 and an ordinary number in float32."""
    x = torch.full((2, 8), 300.0, dtype=torch.float16)
    wide = torch.full((8,), 60_000.0, dtype=torch.float16)
    call = RMSNormCall(x=x, weight=wide, eps=1e-5, output=(x * wide * 0.01))
    unit = registry()["numerical.finite"]
    assert read(unit, call).fails
    small = shrink(unit, call).call
    assert isinstance(small, RMSNormCall)
    assert read(unit, small).fails
    assert small.output is not None
    assert bool(small.output.isinf().any())


def test_shrinking_is_deterministic() -> None:
    """The same record gives the same minimal case on any day: nothing depends on the time."""
    check, make = REALISTIC["a cached key"]
    unit = registry()[check]
    one, other = shrink(unit, make()), shrink(unit, make())
    assert one.tries == other.tries
    assert _same(one.call, other.call)


def test_a_call_that_passes_comes_back_as_it_is() -> None:
    """There is nothing to keep, so nothing is taken away."""
    call = makers.linear(generator(), torch.float32, (4, 64), 130)
    made = shrink(registry()["numerical.linear_checksum"], call)
    assert made.call is call
    assert made.before == made.after
