"""The rules that every check keeps; a new check is held to them the moment it exists."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.checker.calls import DTYPES, generator
from tests.checker.changes import fresh
from tests.checker.faulty import FAULTS
from tests.checker.valid import VALID
from tocsin.checker.contract import Check, phase_of, registry
from tocsin.checker.ratios import field_names
from tocsin.core.calls import Call
from tocsin.core.terms import Layer, Operator, Phase

CHECKS = tuple(registry().values())
IDS = tuple(registry())
SEEDS = 200
each_check = pytest.mark.parametrize("unit", CHECKS, ids=IDS)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))


def cases(unit: Check) -> Iterator[tuple[Operator, str, Any]]:
    for operator in unit.operators:
        for name, maker in VALID[operator].items():
            yield operator, name, maker


def alarms(ratio: Tensor) -> bool:
    return not bool((ratio <= 1.0).all())


@each_dtype
@each_check
def test_is_silent_on_every_valid_call(unit: Check, dtype: torch.dtype) -> None:
    """No edge of the input space alarms: zeros, one token, the largest shape, mixed lengths."""
    for operator, name, maker in cases(unit):
        for seed in range(3):
            ratio = unit(maker(generator(seed), dtype))
            assert not alarms(ratio), f"{operator}, {name}, seed {seed}: {ratio.amax()}"


@each_dtype
@each_check
def test_is_silent_on_two_hundred_seeds(unit: Check, dtype: torch.dtype) -> None:
    """The limits hold with room to spare: no clean ratio comes near them by chance."""
    makers = [(f"{op}, {name}", make) for op, name, make in cases(unit) if name != "largest"]
    for seed in range(SEEDS):
        name, maker = makers[seed % len(makers)]
        ratio = unit(maker(generator(1000 + seed), dtype))
        worst = float(ratio.amax()) if ratio.numel() else 0.0
        room = 1.0 if unit.id == "memory.watermark" else 0.75
        assert worst <= room, f"{name}, seed {seed}"


@each_check
def test_names_at_least_one_fault_that_it_sees(unit: Check) -> None:
    """A check that nothing can fail is not a check."""
    assert FAULTS.get(unit.id), f"tests/checker/faulty.py names no fault for {unit.id}"


def test_every_fault_belongs_to_a_check() -> None:
    """A renamed check does not leave its faults behind, untested."""
    assert set(FAULTS) == set(IDS)


@each_dtype
@pytest.mark.parametrize(
    ("check_id", "fault_name"),
    [(check_id, name) for check_id, faults in FAULTS.items() for name in faults],
)
def test_sees_each_fault_that_it_names(check_id: str, fault_name: str, dtype: torch.dtype) -> None:
    """Each fault alarms in each dtype, and the same call without it does not."""
    (operator, name), fault = FAULTS[check_id][fault_name]
    unit, clean = registry()[check_id], VALID[operator][name](generator(3), dtype)
    broken = fresh(clean)
    fault(broken)
    assert not alarms(unit(clean))
    assert alarms(unit(broken))


@each_check
def test_answers_in_float32_with_one_ratio_a_token_a_row_or_a_call(unit: Check) -> None:
    """What the verdict buffer can reduce to rows, whatever the operands' dtype."""
    for _, name, maker in cases(unit):
        call = maker(generator(), torch.bfloat16)
        ratio = unit(call)
        assert ratio.dtype is torch.float32, name
        assert ratio.ndim == 1, name
        rows = call.rows or ratio.numel()
        assert ratio.numel() in (0, 1) or ratio.numel() % rows == 0, name


@each_check
def test_never_raises_on_a_malformed_tensor(unit: Check) -> None:
    """Wrong dtype, shape, layout or no tensor at all: a ratio, and mostly an alarm."""
    for operator, name, maker in cases(unit):
        if name not in ("plain", next(iter(VALID[operator]))):
            continue
        clean = maker(generator(), torch.float32)
        for field, damaged in damages(clean):
            call = fresh(clean)
            setattr(call, field, damaged)
            ratio = unit(call)
            assert isinstance(ratio, Tensor), f"{operator}.{field}"
            assert ratio.dtype is torch.float32, f"{operator}.{field}"


@pytest.mark.parametrize("operator", registry()["memory.tensor_contract"].operators)
def test_a_wrong_dtype_or_shape_alarms(operator: Operator) -> None:
    """The contract check sees every operand that is no tensor of its kind."""
    unit = registry()["memory.tensor_contract"]
    clean = next(iter(VALID[operator].values()))(generator(), torch.float32)
    for field in field_names(type(clean)):
        if isinstance(getattr(clean, field), Tensor) and "cu_seqlens" not in field:
            for damage in ([[1], [2, 3]], getattr(clean, field).to(torch.complex64)):
                call = fresh(clean)
                setattr(call, field, damage)
                assert alarms(unit(call)), f"{operator}.{field}"


def damages(call: Call) -> Iterator[tuple[str, Any]]:
    for field in field_names(type(call)):
        tensor = getattr(call, field)
        if not isinstance(tensor, Tensor):
            continue
        yield field, tensor.to(torch.complex64)
        yield field, tensor.to(torch.bool)
        yield field, tensor.to(torch.int64) if tensor.is_floating_point() else tensor.float()
        yield field, tensor.to(torch.float64)
        yield field, tensor.reshape(-1)[:0]
        yield field, tensor.reshape(-1)[0]
        yield field, tensor[None]
        yield field, tensor[1:]
        yield field, tensor[..., 1:]
        yield field, tensor.repeat_interleave(2, dim=-1)[..., ::2]
        yield field, tensor.to_sparse()
        yield field, [[1, 2], [3]]
        if tensor.is_floating_point():
            yield field, torch.full_like(tensor, torch.nan)
        else:
            yield field, torch.full_like(tensor, 2**31 - 1)
            yield field, torch.full_like(tensor, -(2**31))


class NoSync(TorchDispatchMode):
    """Fails on every operation that waits for the device."""

    waiting = frozenset({"_local_scalar_dense", "item", "nonzero", "is_nonzero", "equal"})

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        assert name not in self.waiting, f"{name} synchronises the device"
        return func(*args, **(kwargs or {}))


@each_check
def test_never_waits_for_the_device(unit: Check) -> None:
    """No operation that a GPU would have to finish first, on clean and on faulty calls."""
    calls = [maker(generator(), torch.float32) for _, _, maker in cases(unit)]
    for (operator, name), fault in FAULTS[unit.id].values():
        call = VALID[operator][name](generator(), torch.float32)
        fault(call)
        calls.append(call)
    for call in calls:
        with NoSync():
            unit(call)


@each_check
def test_leaves_its_call_as_it_was(unit: Check) -> None:
    """A check only looks: the operands keep every bit."""
    for _, name, maker in cases(unit):
        call = maker(generator(), torch.float16)
        before = fresh(call)
        unit(call)
        for field in field_names(type(call)):
            value = getattr(call, field)
            if isinstance(value, Tensor):
                assert torch.equal(value, getattr(before, field)), f"{name}: {field}"


@each_check
def test_host_side_checks_serve_operators_known_before_the_launch(unit: Check) -> None:
    """The declared phase is that of at least one operator of the check."""
    assert unit.phase in {phase_of(operator) for operator in unit.operators}
    if unit.phase is Phase.BEFORE:
        assert any(phase_of(operator) is Phase.BEFORE for operator in unit.operators)


@each_check
def test_says_what_it_costs_to_ignore_it(unit: Check) -> None:
    """Impact, source, remedy and a first sentence are written for the reader of an alarm."""
    assert len(unit.impact) > 20
    assert unit.source
    assert unit.remedy
    assert unit.summary.endswith(".")


_READS: dict[str, tuple[tuple[Operator, str], tuple[str, ...]]] = {
    "numerical.finite": ((Operator.ROPE, "plain"), ("q_out", "k_out")),
    "numerical.rope_norm": ((Operator.ROPE, "plain"), ("q", "k", "q_out", "k_out")),
    "numerical.rope_signed_sum": (
        (Operator.ROPE, "plain"),
        ("q", "k", "cos", "sin", "q_out", "k_out"),
    ),
    "numerical.rope_table": ((Operator.ROPE, "plain"), ("cos", "sin", "inv_freq")),
    "numerical.rms_range": ((Operator.RMS_NORM, "plain"), ("x", "weight", "output")),
    "numerical.rms_dot": ((Operator.RMS_NORM, "plain"), ("x", "weight", "output")),
    "numerical.linear_checksum": (
        (Operator.LINEAR, "bias, odd blocks"),
        ("x", "weight", "bias", "output"),
    ),
    "numerical.swiglu": ((Operator.SWIGLU, "plain"), ("gate", "up", "output")),
    "numerical.residual": ((Operator.RESIDUAL, "plain"), ("x", "delta", "output")),
    "numerical.attention_hull": ((Operator.ATTENTION, "plain"), ("output",)),
    "numerical.attention_row_sum": (
        (Operator.ATTENTION, "plain"),
        ("q", "k", "v", "output"),
    ),
    "numerical.attention_mask": ((Operator.ATTENTION, "left padding, -inf"), ("mask",)),
    "numerical.logits_bound": ((Operator.LOGITS, "plain"), ("logits", "hidden", "weight")),
    "numerical.all_reduce": ((Operator.ALL_REDUCE, "plain"), ("partials", "output")),
    "state.kv_page_sum": (
        (Operator.KV_UPDATE, "prefill"),
        ("new_key", "new_value"),
    ),
    "semantic.sampler": ((Operator.SAMPLER, "sampled"), ("probs",)),
    "semantic.logit_processor": ((Operator.LOGIT_PROCESSOR, "no allowed set"), ("before", "after")),
}
"""Floating tensors whose values a check reads; the others read metadata or integers."""

_MASKS = ("numerical.attention_mask", "semantic.logit_processor")


@each_dtype
@pytest.mark.parametrize(
    ("check_id", "field"),
    [(check_id, field) for check_id, (_, fields) in _READS.items() for field in fields],
)
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf], ids=str)
def test_alarms_on_a_value_that_is_no_number(
    check_id: str, field: str, value: float, dtype: torch.dtype
) -> None:
    """NaN and infinity in anything a check reads make it alarm, never pass."""
    (operator, name), _ = _READS[check_id]
    call = VALID[operator][name](generator(), dtype)
    tensor = getattr(call, field)
    if value == -torch.inf and check_id in _MASKS:
        return  # there it is what a mask is made of
    tensor.view(-1)[-1] = value
    assert alarms(registry()[check_id](call))


@pytest.mark.parametrize(
    "unit", [u for u in CHECKS if u.layer is Layer.NUMERICAL], ids=lambda u: u.id
)
def test_compiles_into_one_graph(unit: Check) -> None:
    """No branch on a value: a compiled step keeps its checks, and they say the same."""
    operator = unit.operators[-1]
    name = "causal" if operator is Operator.ATTENTION else "plain"
    call = VALID[operator][name](generator(), torch.float32)
    own = {field: getattr(call, field) for field in (*field_names(type(call)), "rows")}
    tensors = {field: value for field, value in own.items() if isinstance(value, Tensor)}
    rest = {field: value for field, value in own.items() if field not in tensors}

    def ratio(**given: Tensor) -> Tensor:
        return unit.ratio(type(call)(**given, **rest))

    torch._dynamo.reset()
    compiled = torch.compile(ratio, fullgraph=True, backend="eager")
    with torch.no_grad():
        assert torch.equal(compiled(**tensors), ratio(**tensors))
