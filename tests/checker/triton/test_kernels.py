"""The Triton kernels compute what the Python checks compute, on whatever they can run on."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tocsin.checker import native
from tocsin.checker import triton as kernels
from tocsin.checker.contract import registry
from tocsin.core.calls import RMSNormCall, RopeCall
from tocsin.core.errors import ContractError

if not kernels.available():
    pytest.skip(f"Triton kernels: {kernels.reason()}", allow_module_level=True)

import triton

from tocsin.checker.triton.page_sum import page_sums
from tocsin.checker.triton.rms_norm import norm_weight, rms_norm_ratios
from tocsin.checker.triton.rope import rope_ratios
from tocsin.checker.triton.verdict import verdict

if not torch.cuda.is_available() and not getattr(triton.language.sum, "rewriter", None):
    pytest.skip(
        "Triton kernels: triton was imported before TRITON_INTERPRET=1; test_interpreter.py runs "
        "this file in a process of its own",
        allow_module_level=True,
    )

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def values(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 3) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype).to(DEVICE)


def reference(check: str, call: Any) -> Tensor:
    return registry()[check](call)


def same(found: Tensor, expected: Tensor, roundings: float) -> None:
    """Equal but for float32 roundings of the sums; what is no number or infinite alarms in both."""
    wild = ~torch.isfinite(expected)
    assert not (found[wild] <= 1.0).any()
    torch.testing.assert_close(found[~wild], expected[~wild], atol=roundings, rtol=1e-3)


def norm_call(x: Tensor, weight: Tensor, eps: float = 1e-5) -> RMSNormCall:
    wide = x.float()
    made = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps) * weight.float()
    return RMSNormCall(x=x, weight=weight, eps=eps, output=made.to(x.dtype))


def norm_ratios(call: RMSNormCall, debug: bool = False) -> Tensor:
    assert call.output is not None
    return rms_norm_ratios(call.x, call.output, norm_weight(call.weight), call.eps, debug=debug)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [7, 576, 4100])
def test_the_norm_kernel_equals_both_python_checks(dtype: torch.dtype, size: int) -> None:
    """Proves ratio by ratio, over dtypes and sizes that do and do not fill a program."""
    call = norm_call(values(2, size, dtype=dtype) * 3, values(size, dtype=dtype, seed=4) + 1)
    dot, spread, share = norm_ratios(call)
    assert (dot <= 1).all()
    assert (spread <= 1).all()
    same(dot, reference("numerical.rms_dot", call), 0.2)
    same(spread, reference("numerical.rms_range", call), 0.2)
    same(share, reference("numerical.finite", call), 0.0)


def faulty(change: str, call: Any, name: str, place: tuple[int, ...]) -> Any:
    """One value of one tensor, changed as a fault would."""
    tensor = getattr(call, name)
    was = float(tensor[place])
    made = {
        "nan": math.nan, "inf": math.inf, "-inf": -math.inf, "sign": -was, "zero": 0.0,
        "huge": torch.finfo(tensor.dtype).max, "large": was * 64 + 8,
    }[change]  # fmt: skip
    tensor[place] = made
    return call


@pytest.mark.parametrize("name", ["x", "output", "weight"])
@pytest.mark.parametrize("change", ["nan", "inf", "-inf", "sign", "zero", "huge", "large"])
def test_the_norm_kernel_sees_what_the_python_checks_see(change: str, name: str) -> None:
    """Proves that no fault in any input is lost on the way: NaN is an alarm, never a maximum's."""
    call = norm_call(values(2, 96), values(96, seed=4) + 1)
    place = (5,) if name == "weight" else (1, 5)
    call = faulty(change, call, name, place)
    dot, spread, share = norm_ratios(call)
    assert torch.equal(share <= 1.0, reference("numerical.finite", call) <= 1.0)
    for found, check in ((dot, "numerical.rms_dot"), (spread, "numerical.rms_range")):
        expected = reference(check, call)
        assert torch.equal(found <= 1.0, expected <= 1.0), (found, expected)
        if change in ("sign", "zero", "large"):
            same(found, expected, 0.2)


@pytest.mark.parametrize("zeros", ["x", "weight", "no token"])
def test_the_norm_kernel_on_edges(zeros: str) -> None:
    """Proves an all-zero row, an all-zero weight and no token at all."""
    x, weight = values(0 if zeros == "no token" else 3, 64), values(64, seed=4)
    (x if zeros == "x" else weight).zero_() if zeros != "no token" else None
    call = norm_call(x, weight)
    dot, spread, share = norm_ratios(call)
    assert len(share) == len(x)
    if len(x):
        same(share, reference("numerical.finite", call), 0.0)
    same(dot, reference("numerical.rms_dot", call), 0.0)
    same(spread, reference("numerical.rms_range", call), 0.0)


def rope_call(
    dtype: torch.dtype, *, size: int = 16, turned: int = 16, tables: int = 1, rows: int = 2
) -> RopeCall:
    """Rotated queries and keys of two positions."""
    q, k = values(rows, 2, 2, size, dtype=dtype), values(rows, 1, 2, size, dtype=dtype, seed=4)
    positions = torch.arange(2, device=DEVICE) + 3
    inverse = 10000.0 ** -(torch.arange(0, turned, 2, device=DEVICE) / turned)
    angles = torch.outer(positions.float(), inverse).repeat(1, 2)[None].repeat(tables, 1, 1)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)

    def turn(x: Tensor) -> Tensor:
        head, rest = x[..., :turned].float(), x[..., turned:]
        other = torch.cat((-head[..., turned // 2 :], head[..., : turned // 2]), dim=-1)
        made = head * cos[:, None].float() + other * sin[:, None].float()
        return torch.cat((made.to(dtype), rest), dim=-1)

    return RopeCall(
        q=q, k=k, cos=cos, sin=sin, position_ids=positions[None], q_out=turn(q), k_out=turn(k)
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape",
    [{}, {"tables": 2}, {"size": 24, "turned": 16}, {"size": 64, "turned": 64, "rows": 1}],
    ids=["one table", "a table a row", "partial", "one row"],
)
def test_the_rope_kernel_equals_both_python_checks(
    dtype: torch.dtype, shape: dict[str, int]
) -> None:
    """Proves ratio by ratio, with shared tables and partial rotation."""
    call = rope_call(dtype, **shape)
    norms, sums, share = rope_ratios(call)
    same(share, reference("numerical.finite", call), 0.0)
    assert (norms <= 1).all()
    assert (sums <= 1).all()
    same(norms, reference("numerical.rope_norm", call), 0.1)
    same(sums, reference("numerical.rope_signed_sum", call), 0.2)


@pytest.mark.parametrize("name", ["q", "k", "q_out", "k_out", "cos", "sin"])
@pytest.mark.parametrize("change", ["nan", "inf", "sign", "huge"])
def test_the_rope_kernel_sees_what_the_python_checks_see(change: str, name: str) -> None:
    """Proves that faults in every input give the same alarms, at the same tokens."""
    call = rope_call(torch.float32, rows=1)
    place = (0, 1, 3) if name in ("cos", "sin") else (0, 0, 1, 3)
    call = faulty(change, call, name, place)
    found = rope_ratios(call)
    checks = ("numerical.rope_norm", "numerical.rope_signed_sum", "numerical.finite")
    for index, check in enumerate(checks):
        expected = reference(check, call)
        assert torch.equal(found[index] <= 1.0, expected <= 1.0), (found[index], expected)
    assert (change == "sign" and name in ("cos", "sin")) or not (found <= 1.0).all()


def test_the_rope_kernel_takes_queries_alone() -> None:
    """Proves a call of which only one side was rotated, through strides of a transposed view."""
    call = rope_call(torch.float32)
    call.k_out = None
    call.q = call.q.transpose(1, 2).contiguous().transpose(1, 2)
    norms, sums, share = rope_ratios(call)
    same(share, reference("numerical.finite", call), 0.0)
    same(norms, reference("numerical.rope_norm", call), 0.1)
    same(sums, reference("numerical.rope_signed_sum", call), 0.2)


def exact_sums(data: Tensor) -> Tensor:
    """The sums in Python's own integers."""
    words = data.cpu().view(torch.int64)
    flat = words.reshape(-1, words.shape[-1]).tolist()
    sums = [sum(word * (2 * i + 1) for i, word in enumerate(row)) % 2**64 for row in flat]
    signed = [one - 2**64 if one >= 2**63 else one for one in sums]
    return torch.tensor(signed).reshape(words.shape[:-1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [4, 96, 260])
def test_page_sums_are_exact_modulo_two_to_the_64(dtype: torch.dtype, width: int) -> None:
    """Proves wrap-around and positions against integers without bounds."""
    data = values(3, 2, 2, width, dtype=dtype)
    data[1, 0, 1, 1], data[1, 1, 0, 0] = torch.nan, -math.inf
    assert torch.equal(page_sums(data).cpu(), exact_sums(data))
    pages = torch.tensor([2, 0, 2], device=DEVICE)
    assert torch.equal(page_sums(data, pages).cpu(), exact_sums(data)[pages.cpu()])


def test_any_bit_and_any_exchange_changes_a_page_sum() -> None:
    """Proves that no bit of a page is out of the sum, and that words may not change places."""
    data = values(1, 1, 1, 4)
    clean = page_sums(data)
    seen = set()
    for bit in range(4 * 32):
        bits = data.view(torch.int32)
        mask = 1 << (bit % 32)
        bits[0, 0, 0, bit // 32] ^= mask - (1 << 32) if mask >= 1 << 31 else mask
        seen.add(int(page_sums(data)))
        bits[0, 0, 0, bit // 32] ^= mask - (1 << 32) if mask >= 1 << 31 else mask
    assert int(clean) not in seen
    words = data.view(torch.int64)
    words[0, 0, 0, [0, 1]] = words[0, 0, 0, [1, 0]]
    assert not torch.equal(page_sums(data), clean)


def test_rows_that_are_no_words_are_refused() -> None:
    """Proves the contract of the pages: whole words, one after the other."""
    with pytest.raises(ContractError, match="whole 64-bit words"):
        page_sums(torch.zeros(2, 3, 3, device=DEVICE))
    with pytest.raises(ContractError, match="contiguous False"):
        page_sums(torch.zeros(2, 4, 8, device=DEVICE)[:, ::2])


@pytest.mark.parametrize("columns", [1, 65, 5000])
def test_the_verdict_kernel_keeps_the_worst_of_each_site(columns: int) -> None:
    """Proves the reduction: NaN and infinity win, a level of 0 silences whatever is there."""
    buffer = values(6, columns).abs() / 8
    buffer[1, -1], buffer[2, 0], buffer[3, columns // 2] = torch.nan, torch.inf, 3.5
    buffer[4] = torch.nan
    levels = torch.tensor([1.0, 1.0, 1.0, 0.5, 0.0, 1.0], device=DEVICE)
    worst = verdict(buffer, levels).cpu()
    assert worst[0] == buffer[0].amax()
    assert math.isnan(worst[1])
    assert worst[2] == math.inf
    assert worst[3] == 1.75
    assert worst[4] == 0.0
    assert worst[5] == buffer[5].amax()


def test_debug_mode_stops_at_the_launch_that_alarms() -> None:
    """Proves `tl.device_assert`: silent on clean calls, an error where a check alarms."""
    if DEVICE == "cuda":
        pytest.skip("an assertion on the device ends the process's use of it")
    norm, rope = norm_call(values(2, 96), values(96) + 1), rope_call(torch.float32)
    data, levels = values(2, 1, 8), torch.ones(2)
    norm_ratios(norm, debug=True)
    rope_ratios(rope, debug=True)
    page_sums(data, debug=True)
    verdict(values(2, 3).abs() / 8, levels, debug=True)
    faulty("large", norm, "output", (1, 5))
    assert not (norm_ratios(norm) <= 1).all()
    with pytest.raises(Exception, match=r"numerical\.rms"):
        norm_ratios(norm, debug=True)
    faulty("sign", rope, "q_out", (1, 1, 1, 3))
    with pytest.raises(Exception, match=r"numerical\.rope_signed_sum"):
        rope_ratios(rope, debug=True)
    with pytest.raises(Exception, match="a page beyond the memory"):
        page_sums(data, torch.tensor([2]), debug=True)
    with pytest.raises(Exception, match="a check of this step alarms"):
        verdict(torch.full((2, 3), math.nan), levels, debug=True)


def test_the_cuda_forms_compute_what_the_native_operators_compute() -> None:
    """Proves one contract: same arguments, same results in the same order, for several calls."""
    if not native.available():
        pytest.skip(f"native operators: {native.reason()}")
    from tocsin.checker.triton import operators

    norms = [norm_call(values(2, 96, seed=n) * 3, values(96, seed=n + 9)) for n in range(2)]
    columns = [
        [one.x for one in norms],
        [one.output for one in norms],
        [one.weight for one in norms],
    ]
    for _ in range(2):  # the second time the weights are known
        made = operators.rms_norm(*columns, 1e-5)
        same(made.cpu(), torch.ops.tocsin.rms_norm(*_on_cpu(columns), 1e-5), 0.2)
    norms[1].weight.mul_(2)
    made = operators.rms_norm(*columns, 1e-5)
    assert not (made[:, 1] <= 1).all()
    turns = [rope_call(torch.float32), rope_call(torch.float32, tables=1)]
    names = ("q", "k", "q_out", "k_out", "cos", "sin")
    columns = [[getattr(one, name) for one in turns] for name in names]
    same(operators.rope(*columns).cpu(), torch.ops.tocsin.rope(*_on_cpu(columns)), 0.2)
    data = values(3, 2, 8)
    for weighted in (False, True):
        expected = torch.ops.tocsin.word_sums(data.cpu(), weighted)
        assert torch.equal(operators.word_sums(data, weighted).cpu(), expected)
        at = torch.tensor([2, 0], device=DEVICE)
        assert torch.equal(operators.word_sums_at(data, at, weighted).cpu(), expected[at.cpu()])
    buffer, levels = values(4, 9), torch.tensor([1.0, 0.0, 2.0, 1.0], device=DEVICE)
    buffer[3, 2] = torch.nan
    expected = torch.ops.tocsin.verdict(buffer.cpu(), levels.cpu())
    found = operators.OPERATORS["verdict"](buffer, levels).cpu()
    assert torch.equal(found.nan_to_num(-1.0), expected.nan_to_num(-1.0))


def _on_cpu(columns: list[list[Any]]) -> list[list[Tensor]]:
    return [[one.cpu() for one in column] for column in columns]


def test_the_cuda_forms_are_what_torch_calls_for_cuda_tensors() -> None:
    """Proves the registration: once, for the five operators, and only where they are declared."""
    if not native.available():
        pytest.skip(f"native operators: {native.reason()}")
    from tocsin.checker.triton import operators

    assert operators.register() == ""
    assert operators.register() == ""
    for name in operators.OPERATORS:
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"tocsin::{name}", "CUDA")
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"tocsin::{name}", "CPU")
    assert not torch._C._dispatch_has_kernel_for_dispatch_key("tocsin::swiglu", "CUDA")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="a CUDA graph needs a CUDA device")
def test_the_kernels_can_be_captured_in_a_graph() -> None:
    """Proves that a replay computes anew from the same addresses, on a GPU."""
    call, levels = norm_call(values(4, 576), values(576) + 1), torch.ones(2, device=DEVICE)
    weight = norm_weight(call.weight)
    assert call.output is not None
    verdict(rms_norm_ratios(call.x, call.output, weight, call.eps), levels)  # compiled before
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        worst = verdict(rms_norm_ratios(call.x, call.output, weight, call.eps), levels)
    graph.replay()
    assert (worst <= 1).all()
    call.output[2, 7] *= -64
    graph.replay()
    assert not (worst <= 1).all()
    levels.zero_()
    graph.replay()
    assert (worst == 0).all()
