"""The native operators say what the Python checks say, ratio by ratio, clean and hurt."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.checker.calls import attention, linear, trusted
from tests.checker.faulty import FAULTS
from tests.checker.native.native_ratios import NATIVE, native_ratios
from tests.checker.valid import VALID
from tocsin.checker import native
from tocsin.checker.contract import registry
from tocsin.core.calls import AttentionCall, Call, KVUpdateCall, RopeCall

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
NOISE = 0.35
"""Sums run in another order: a clean ratio may differ by this share of its limit."""

ODD = (math.nan, math.inf, -math.inf, -3.4e38, 1e-40, -0.0)


@pytest.fixture(autouse=True, scope="module")
def _built() -> None:
    if not native.available():
        pytest.skip(native.reason())


def covered() -> Iterator[tuple[str, Any]]:
    """Every case of a valid call whose operator has a native form."""
    for operator, cases in VALID.items():
        for name, make in cases.items():
            if type(make(torch.Generator().manual_seed(0), torch.float32)) in NATIVE:
                yield f"{operator}: {name}", make


CASES = dict(covered())


def compare(call: Call, what: str) -> int:
    """Hold every native result to its Python check; returns how many there were."""
    compared = 0
    for check_id, found in native_ratios(call).items():
        expected = registry()[check_id].ratio(call)
        place = f"{what}: {check_id}"
        if expected.numel() == 0:
            assert not found.any(), place
            continue
        assert found.dtype is torch.float32, place
        assert expected.numel() in (1, found.numel()), place
        assert_equal(found, expected.expand_as(found), place)
        compared += 1
    return compared


def assert_equal(found: Tensor, expected: Tensor, place: str) -> None:
    """The same alarms, and the same ratios up to rounding; an infinite one may be NaN."""
    clear = (expected - 1).abs() > NOISE
    alarms = ~(expected <= 1.0)
    assert torch.equal(~(found <= 1.0) | ~clear, alarms | ~clear), (place, found, expected)
    both = found.isfinite() & expected.isfinite()
    off = (found - expected).abs() - (NOISE + 0.02 * expected.abs())
    assert not (off[both] > 0).any(), (place, found, expected)
    odd = both ^ (found.isfinite() | expected.isfinite())
    assert (torch.minimum(found, expected).abs()[odd] > 1e3).all(), (place, found, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_a_valid_call_has_the_same_ratios(case: str, dtype: torch.dtype) -> None:
    """Proves the arithmetic on every valid call that the Python checks are tested with."""
    call = CASES[case](torch.Generator().manual_seed(3), dtype)
    assert compare(call, case) > 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_fault_that_python_sees_is_seen(dtype: torch.dtype) -> None:
    """Proves that no fault of a check's own list is lost on the way to C++."""
    seen = 0
    for check_id, faults in FAULTS.items():
        for name, ((operator, case), fault) in faults.items():
            call: Any = VALID[operator][case](torch.Generator().manual_seed(3), dtype)
            fault(call)
            if type(call) not in NATIVE or not readable(call):
                continue
            ratios = native_ratios(call)
            if check_id not in ratios or registry()[check_id].ratio(call).numel() == 0:
                continue
            python = ~(registry()[check_id].ratio(call) <= 1.0)
            if bool(python.any()):
                assert bool((~(ratios[check_id] <= 1.0)).any()), (check_id, name)
                seen += 1
    assert seen > 60


def readable(call: Any) -> bool:
    """Whether a call has its outputs and a form that the operators take; else Python checks it."""
    fields = [getattr(call, name) for name in type(call).__dataclass_fields__]
    outputs = ("q_out", "k_out") if isinstance(call, RopeCall) else ("output",)
    has = all(getattr(call, name, True) is not None for name in outputs)
    floats = [one for one in fields if isinstance(one, Tensor) and one.is_floating_point()]
    floats = [one for one in floats if one.dtype is not torch.float64]
    return (
        has
        and registry()["memory.tensor_contract"].ratio(call).item() == 0
        and (native.takes(*floats))
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", [name for name in CASES if "plain" in name or "decode" in name])
def test_odd_numbers_anywhere_give_the_same_alarms(case: str, dtype: torch.dtype) -> None:
    """Proves that NaN, infinity, huge, tiny and negative zero are judged alike in each tensor."""
    names = CASES[case](torch.Generator(), dtype).__dataclass_fields__
    for name in names:
        for number in ODD:
            call = CASES[case](torch.Generator().manual_seed(5), dtype)
            tensor = getattr(call, name)
            if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
                continue
            if isinstance(call, KVUpdateCall) and name.endswith("cache"):
                continue  # a whole page would have to be found again
            spoiled = tensor.clone()
            spoiled.reshape(-1)[spoiled.numel() // 2] = number
            setattr(call, name, spoiled)
            judge(call, f"{case}: {name} = {number}", hidden=name in ("k", "v"))


def judge(call: Any, place: str, *, hidden: bool) -> None:
    """No alarm of Python's is missing; none is added where the number was looked at by both."""
    for check_id, found in native_ratios(call).items():
        expected = registry()[check_id].ratio(call)
        if expected.numel() == 0:
            continue
        python, cpp = ~(expected <= 1.0), ~(found <= 1.0)
        assert bool(cpp.any()) or not bool(python.any()), (place, check_id, found, expected)
        if not (hidden and isinstance(call, AttentionCall)):
            assert bool(python.any()) or not bool(cpp.any()), (place, check_id, found, expected)


@pytest.mark.parametrize("seed", range(24))
def test_any_form_of_attention_gives_the_same_ratios(seed: int) -> None:
    """Proves head sizes, groups, lengths, masks and chunks that no table lists, clean and hurt."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*options: Any) -> Any:
        return options[int(torch.randint(len(options), (1,), generator=generator))]

    dtype, kv_heads, queries = draw(*DTYPES), draw(1, 2, 3), draw(1, 1, 2, 19)
    keys, rows = queries + draw(0, 1, 15, 16, 33, 70), draw(1, 3)
    heads = (kv_heads * draw(1, 2, 3, 5), kv_heads)
    shape = (draw(1, rows), draw(1, heads[0]), queries, keys)
    mask: Tensor | None = torch.rand(shape, generator=generator) < draw(0.3, 0.9)
    mask[..., keys - 1] = True
    if draw(True, False):
        mask = torch.zeros(shape).masked_fill(~mask, -math.inf) + 0.25 * draw(0, 1)
    mask = draw(mask, mask, None)
    call = attention(
        generator,
        dtype,
        (queries, keys),
        heads=heads,
        rows=rows,
        mask=mask,
        eager=mask is not None and mask.is_floating_point(),
        causal=draw(True, False),
        size=draw(8, 24, 64, 80, 128),
        softcap=draw(None, None, 20.0),
        sharp=draw(1.0, 3.0),
    )
    compare(call, f"seed {seed}")
    assert isinstance(call.output, Tensor)
    at = int(torch.randint(call.output.numel(), (1,), generator=generator))
    call.output = call.output.clone()
    call.output.view(-1)[at] = draw(50.0, -50.0, math.nan)
    compare(call, f"seed {seed}, hurt")


@pytest.mark.parametrize("seed", range(24))
def test_any_form_of_a_linear_layer_gives_the_same_ratios(seed: int) -> None:
    """Proves tokens, blocks and widths that no table lists: full tiles, tails, odd blocks."""
    generator = torch.Generator().manual_seed(100 + seed)

    def draw(*options: Any) -> Any:
        return options[int(torch.randint(len(options), (1,), generator=generator))]

    tokens, hidden = draw(1, 2, 3, 7, 8, 9, 17, 40), draw(1, 15, 16, 48, 100)
    call = linear(generator, draw(*DTYPES), (tokens, hidden), draw(1, 130, 256, 300), draw(0, 1))
    call.block_size = draw(1, 16, 100, 128)
    call = trusted(call) if draw(True, False) else call
    compare(call, f"seed {seed}")
    assert isinstance(call.output, Tensor)
    call.output[-1, -1] += draw(30.0, -30.0, math.inf)
    compare(call, f"seed {seed}, hurt")


def test_calls_of_a_list_do_not_touch_each_other() -> None:
    """Proves that n calls give what each gives alone, on one thread and on two, strided or not."""
    generator = torch.Generator().manual_seed(1)
    wide = [torch.randn(8, 7, 1200, generator=generator) for _ in range(20)]
    xs = [one[:, ::2, :576] for one in wide]
    deltas = [torch.randn(xs[0].shape, generator=generator) for _ in xs]
    ys = [x + delta for x, delta in zip(xs, deltas, strict=True)]
    ys[3][2, 1, 5] += 1.0
    alone = torch.cat(
        [torch.ops.tocsin.residual([a], [b], [c]) for a, b, c in zip(xs, deltas, ys, strict=True)],
        1,
    )
    threads = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            together = torch.ops.tocsin.residual(xs * 4, deltas * 4, ys * 4)
            assert torch.equal(together, alone.repeat(1, 4, 1))
    finally:
        torch.set_num_threads(threads)
    assert torch.nonzero(~(alone[0] <= 1.0)).tolist() == [[3, 2 * 4 + 1]]


def test_an_empty_call_has_no_ratios() -> None:
    """Proves that zero tokens, or tokens without a number, are legal and say nothing."""
    empty = torch.zeros(0, 1, 576)
    assert torch.ops.tocsin.residual([empty], [empty], [empty]).shape == (2, 1, 0)
    assert not torch.ops.tocsin.magnitude([torch.zeros(3, 0)]).any()
    keyless = torch.zeros(2, 3, 1, 8), torch.zeros(2, 3, 0, 8)
    q, k = keyless
    assert not torch.ops.tocsin.attention([q], [k], [k], [q], [], [], []).any()


@pytest.mark.parametrize("weighted", [False, True])
def test_sums_of_words_are_those_of_whole_numbers(weighted: bool) -> None:
    """Proves the wrap-around sums, gathered or not, for odd strides and addresses too."""
    generator = torch.Generator().manual_seed(2)
    words = torch.randint(-(2**62), 2**62, (5, 3, 24), generator=generator)
    factors = torch.arange(24) * 2 + 1 if weighted else torch.ones(24, dtype=torch.int64)
    expected = (words * factors).sum(dim=-1)
    data = words.view(torch.bfloat16)
    assert torch.equal(torch.ops.tocsin.word_sums(data, weighted), expected)
    at = torch.tensor([4, 0, 4])
    assert torch.equal(torch.ops.tocsin.word_sums_at(data, at, weighted), expected[at])
    turned = words.transpose(0, 1)
    assert torch.equal(torch.ops.tocsin.word_sums(turned, weighted), expected.transpose(0, 1))
    shifted = torch.cat((torch.zeros(1, dtype=torch.uint8), words[0].flatten().view(torch.uint8)))
    rows = shifted[1:].view(3, 24 * 8)
    assert torch.equal(torch.ops.tocsin.word_sums(rows, weighted), expected[0])


def test_lists_that_do_not_fit_raise() -> None:
    """Proves that no operator reads beyond a tensor: a wrong shape or dtype is an error."""
    x, y = torch.zeros(4, 8), torch.zeros(4, 7)
    ops = torch.ops.tocsin
    with pytest.raises(RuntimeError, match="tocsin"):
        ops.residual([x], [x], [y])
    with pytest.raises(RuntimeError, match="tocsin"):
        ops.residual([x, x], [x], [x])
    with pytest.raises(RuntimeError, match="Double"):
        ops.residual([x.double()], [x.double()], [x.double()])
    with pytest.raises(RuntimeError, match="tocsin"):
        ops.rms_norm([x], [x], [torch.ones(7)], 1e-5)
    with pytest.raises(RuntimeError, match="block_sums"):
        ops.linear_checksum([x], [x], [torch.zeros(2, 8)], [torch.zeros(1)], [], [])
    with pytest.raises(IndexError):
        ops.word_sums_at(torch.zeros(3, 8), torch.tensor([3]))
    q = torch.zeros(1, 3, 1, 8)
    with pytest.raises(RuntimeError, match="mask"):
        ops.attention([q], [q], [q], [q], [torch.zeros(1, 1, 1, 2)], [], [])
