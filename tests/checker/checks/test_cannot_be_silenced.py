"""No check is silenced by the fault that it looks for, wherever else that fault strikes as well."""

import itertools
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.checker import claims
from tests.checker.calls import DTYPES, generator
from tests.checker.changes import fresh
from tests.checker.claims import CLAIMS, CLASSES, METADATA, Claim
from tests.checker.faulty import FAULTS
from tests.checker.valid import VALID
from tocsin.checker.contract import Check, registry
from tocsin.checker.ratios import field_names
from tocsin.core.calls import Call
from tocsin.core.terms import Operator

_WORD = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_CONSTANT = {"vanishing": 0.0, "Inf": torch.inf, "NaN": torch.nan}

_UNDOES = {
    ("state.page_owner", "pages"): "the page that stood twice is named anew: it no longer does"
}
"""Check and field → why a second fault there can put the first one right."""


def chosen(examples: int) -> settings:
    """The same examples on every run."""
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
    )


each_check = pytest.mark.parametrize("check_id", sorted(set(FAULTS) - set(METADATA)))


def hurt(tensor: Tensor, kind: str, index: int) -> bool:
    """Let one number or word suffer one class of fault; False where it has none such."""
    if not tensor.is_contiguous():
        copy = tensor.contiguous()
        changed = hurt(copy, kind, index)
        tensor.copy_(copy)
        return changed
    place = tensor.view(-1)[index : index + 1]
    before = place.clone()
    bits = 8 * tensor.element_size()
    if tensor.dtype is torch.bool:
        place.logical_not_()
    elif kind == "vanishing" or (kind in _CONSTANT and tensor.is_floating_point()):
        place.fill_(_CONSTANT[kind])
    elif kind in _CONSTANT:
        return False
    elif kind == "sign":
        place.view(_WORD[tensor.element_size()]).bitwise_xor_(-(1 << (bits - 1)))
    elif tensor.is_floating_point():
        place.view(_WORD[tensor.element_size()]).bitwise_or_(1 << (bits - 2))
    else:
        place.bitwise_xor_(1 << (bits - 2))
    return not torch.equal(place, before)


@cache
def clean(operator: Operator, case: str, seed: int, dtype: torch.dtype) -> Call:
    return VALID[operator][case](generator(seed), dtype)


def alarms(ratio: Tensor) -> bool:
    return not bool((ratio <= 1.0).all())


def test_every_check_says_what_it_claims_to_see() -> None:
    """A new check has its claims, or a reason why no fault in a tensor can reach it."""
    assert set(CLAIMS) | set(METADATA) == set(registry())
    assert not set(CLAIMS) & set(METADATA)


_SPOTS = [
    (check_id, claim, field)
    for check_id, found in CLAIMS.items()
    for claim in found
    for field in claim.fields
]


@pytest.mark.parametrize(
    ("check_id", "claim", "field"),
    _SPOTS,
    ids=[f"{check_id}-{claim.operator}-{field}" for check_id, claim, field in _SPOTS],
)
def test_a_fault_of_a_kind_that_it_claims_to_see_alarms(
    check_id: str, claim: Claim, field: str
) -> None:
    """Any class, in any field that the rule reads: what it cannot see, its witness does."""
    unit, blind = registry()[check_id], dict(claim.fields[field].invisible)
    for seed, dtype in itertools.product(range(2), DTYPES):
        call = clean(claim.operator, claim.case, seed, dtype)
        assert not alarms(unit(call))
        for index, kind in itertools.product(claims.of(call, claim, field), CLASSES):
            broken = fresh(call)
            if not hurt(getattr(broken, field), kind, index):
                continue
            witness = blind.get(kind)
            if witness is None:
                assert alarms(unit(broken)), f"{kind} at {index}, seed {seed}, {dtype}"
            elif callable(witness):
                seen = alarms(witness(call, broken))
                assert seen, f"{kind} at {index}, seed {seed}, {dtype}, by its witness"
            else:
                assert len(witness) > 20


@each_check
@chosen(20)
@given(data=st.data())
def test_no_second_fault_hides_the_first(check_id: str, data: st.DataObject) -> None:
    """Two faults at once, twenty times a check; the long run is the test below."""
    _two_faults(registry()[check_id], data)


@pytest.mark.slow
@each_check
@chosen(500)
@given(data=st.data())
def test_no_second_fault_ever_hides_the_first(check_id: str, data: st.DataObject) -> None:
    """The same, five hundred times a check."""
    _two_faults(registry()[check_id], data)


def _two_faults(unit: Check, data: st.DataObject) -> None:
    """What is seen alone is seen with another fault anywhere: no limit widens, no NaN swallows it.

    Where the check itself falls silent, as the hull of live values does, another that is declared
    for the second fault's field alarms instead.
    """
    name = data.draw(st.sampled_from(sorted(FAULTS[unit.id])), "first")
    (operator, case), fault = FAULTS[unit.id][name]
    dtype = data.draw(st.sampled_from(DTYPES), "dtype")
    call = clean(operator, case, data.draw(st.integers(0, 3), "seed"), dtype)
    broken = fresh(call)
    fault(broken)
    if not alarms(unit(broken)):
        assume(False)
    field = data.draw(st.sampled_from(_sound_tensors(call, broken)), "field")
    assume((unit.id, field) not in _UNDOES)
    tensor, before = getattr(broken, field), getattr(call, field)
    index = data.draw(st.integers(0, tensor.numel() - 1), "element")
    kind = data.draw(st.sampled_from(CLASSES), "class")
    # At the very place of the first fault the second may undo it.
    assume(torch.equal(tensor.reshape(-1)[index], before.reshape(-1)[index]))
    setattr(broken, field, tensor.clone())
    assume(hurt(getattr(broken, field), kind, index))
    assert alarms(unit(broken)) or _another_alarms(unit, call, broken, field)


def _sound_tensors(call: Call, broken: Call) -> list[str]:
    """Tensors of the record that the first fault has left in their form."""
    return [
        name
        for name in field_names(type(call))
        if isinstance(now := getattr(broken, name), Tensor)
        and isinstance(was := getattr(call, name), Tensor)
        and (now.shape, now.dtype) == (was.shape, was.dtype)
        and now.numel()
    ]


def _another_alarms(unit: Check, call: Call, broken: Call, field: str) -> bool:
    """Whether a witness of the check's own claims alarms on the same case."""
    witnesses: list[Any] = [
        one
        for claim in CLAIMS[unit.id]
        if claim.operator is call.operator and field in claim.fields
        for one in dict(claim.fields[field].invisible).values()
        if callable(one)
    ]
    return any(alarms(one(call, broken)) for one in witnesses)
