"""The sentence that tells transient corruption from a wrong kernel and from wrong inputs."""

from typing import Any

import pytest
import torch

from tests.checker import calls as makers
from tests.checker.calls import generator
from tests.checker.changes import flip, fresh
from tests.checker.faulty import FAULTS
from tests.checker.valid import VALID
from tocsin.checker.reproduction.diagnosis import diagnose
from tocsin.core.terms import Operator

_WITH_REFERENCE = (
    Operator.EMBEDDING,
    Operator.ROPE,
    Operator.RMS_NORM,
    Operator.LINEAR,
    Operator.SWIGLU,
    Operator.RESIDUAL,
    Operator.ATTENTION,
    Operator.LOGITS,
    Operator.ALL_REDUCE,
    Operator.BATCH,
    Operator.KV_READ,
    Operator.WEIGHT,
)


@pytest.mark.parametrize("dtype", makers.DTYPES)
@pytest.mark.parametrize(
    ("operator", "case"), [(one, case) for one in _WITH_REFERENCE for case in VALID[one]]
)
def test_a_valid_call_is_as_computed(operator: Operator, case: str, dtype: torch.dtype) -> None:
    """The plain reference agrees with every kernel on every valid call: no false accusation."""
    found = diagnose(VALID[operator][case](generator(), dtype))
    assert found.verdict in ("as computed", "no reference"), found.words


@pytest.mark.parametrize("dtype", makers.DTYPES)
def test_one_flipped_bit_is_named(dtype: torch.dtype) -> None:
    """Which number, what it ought to be, and which bit."""
    call: Any = makers.residual(generator(), dtype, 3, 4, 64)
    flip(call.output, 1)
    found = diagnose(call)
    assert found.verdict == "a few numbers"
    assert f"bit {dtype.itemsize * 8 - 2} flipped" in found.words


def test_a_wrong_kernel_is_wrong_throughout() -> None:
    """Half the numbers wrong is no flipped bit."""
    call: Any = makers.swiglu(generator(), torch.float32, 8, 64)
    call.output = torch.nn.functional.gelu(call.gate) * call.up
    found = diagnose(call)
    assert found.verdict == "wrong throughout"
    assert "the operator, its parameters or its inputs" in found.words


def test_a_changed_weight_is_told_from_a_changed_product() -> None:
    """The product is right for the weight in memory; that weight is not the trusted one."""
    (place, fault) = FAULTS["numerical.linear_checksum"]["weight changed since"]
    call = fresh(VALID[place[0]][place[1]](generator(), torch.float32))
    fault(call)
    found = diagnose(call)
    assert found.verdict == "changed since"
    assert found.words.startswith("The weight of this call is not what it ought to be")


def test_an_input_that_is_no_number_points_to_the_operator_before() -> None:
    """A NaN travels: only the first operator that met it is to blame."""
    call: Any = makers.rms_norm(generator(), torch.float32, 3, 64)
    call.x[1, 5] = torch.nan
    call.output[1] = torch.nan
    assert "before this operator" in diagnose(call).words or diagnose(call).verdict == "as computed"
    call.x[1, 5] = 1e30
    call.output[1] = 0.0
    found = diagnose(call)
    assert found.verdict == "wrong before"
    assert "tocsin bisect" in found.words
