"""Varlen metadata has one owner, and a guarded kernel is launched only on what was checked."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tocsin.checker.attach.flash_attn import GuardedVarlen
from tocsin.checker.attach.flash_sdpa import flash_attn_varlen_func
from tocsin.checker.breaker import Breaker
from tocsin.checker.varlen import VarlenLock, VarlenMetadata
from tocsin.checker.watermark import Watermark
from tocsin.core.clock import ManualClock
from tocsin.core.errors import CheckFailed, ContractError
from tocsin.core.terms import BreakerState

GIB = 1 << 30


def metadata(*lengths: int) -> VarlenMetadata:
    offsets = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
    return VarlenMetadata(offsets, offsets.clone(), max(lengths), max(lengths))


def in_thread(work: Callable[[], Any]) -> BaseException | None:
    """Run in another thread; returns what it raised."""
    raised: list[BaseException] = []

    def body() -> None:
        try:
            work()
        except ContractError as error:
            raised.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    return raised[0] if raised else None


def test_another_thread_can_neither_hold_nor_edit_nor_launch() -> None:
    """Proves that metadata under way belongs to one thread."""
    lock = VarlenLock()
    with lock.hold(metadata(3, 4)):
        for work in (
            lambda: lock.edit(metadata(1)),
            lambda: lock.launch(),
            lambda: lock.hold(metadata(1)).__enter__(),
        ):
            assert isinstance(in_thread(work), ContractError)
        assert lock.launch().max_seqlen_q == 4
    assert in_thread(lambda: lock.hold(metadata(1)).__enter__()) is None


def test_the_owner_may_edit_and_then_launch() -> None:
    """Proves that the lock does not hinder its owner."""
    lock = VarlenLock()
    with lock.hold(metadata(3, 4)):
        lock.edit(metadata(5))
        assert lock.launch().max_seqlen_k == 5


@pytest.mark.parametrize("change", ["value", "swap"])
def test_a_write_into_checked_metadata_is_seen_at_the_launch(change: str) -> None:
    """Proves the sum: a changed offset, and two exchanged ones that a plain sum would miss."""
    lock = VarlenLock()
    held = metadata(3, 4, 2)
    with lock.hold(held):
        if change == "value":
            held.cu_seqlens_k[1] = 6
        else:
            held.cu_seqlens_k[1], held.cu_seqlens_k[2] = 7, 3
        with pytest.raises(ContractError, match="changed after it was checked"):
            lock.launch()


def test_nobody_launches_without_the_lock() -> None:
    """Proves that a launch needs an owner, and that an error gives the lock back."""
    lock = VarlenLock()
    with pytest.raises(ContractError, match="nobody"):
        lock.launch()
    with pytest.raises(ZeroDivisionError), lock.hold(metadata(2)):
        raise ZeroDivisionError
    with lock.hold(metadata(2)):
        lock.launch()


class Stand:
    """A CPU stand-in for flash-attn: right, raising or wrong on demand; counts its launches."""

    def __init__(self) -> None:
        self.launches = 0
        self.fails = False
        self.poison = False

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        softmax_scale: float | None = None,
        causal: bool = False,
    ) -> Tensor:
        self.launches += 1
        if self.fails:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        output = flash_attn_varlen_func(
            q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, 0.0, softmax_scale,
            causal,
        )  # fmt: skip
        assert isinstance(output, Tensor)
        if self.poison:
            output[0, 0, 0] = torch.nan
        return output


def packed(*lengths: int) -> dict[str, Any]:
    """Random q, k, v of these lengths, two query heads to one key head."""
    facts = metadata(*lengths)
    generator = torch.Generator().manual_seed(2)
    total = sum(lengths)
    return {
        "q": torch.randn(total, 4, 8, generator=generator),
        "k": torch.randn(total, 2, 8, generator=generator),
        "v": torch.randn(total, 2, 8, generator=generator),
        "cu_seqlens_q": facts.cu_seqlens_q,
        "cu_seqlens_k": facts.cu_seqlens_k,
        "max_seqlen_q": facts.max_seqlen_q,
        "max_seqlen_k": facts.max_seqlen_k,
    }


@pytest.mark.parametrize("causal", [False, True])
def test_the_fallback_is_the_same_attention(causal: bool) -> None:
    """Proves the fallback against plain arithmetic, with grouped heads and an empty sequence."""
    inputs = packed(3, 5)
    offsets = torch.tensor([0, 3, 3, 8], dtype=torch.int32)
    inputs["cu_seqlens_q"] = inputs["cu_seqlens_k"] = offsets
    output = flash_attn_varlen_func(**inputs, causal=causal)
    for start, stop in ((0, 3), (3, 8)):
        q, k, v = (inputs[name][start:stop].double() for name in ("q", "k", "v"))
        k, v = (one.repeat_interleave(2, dim=1) for one in (k, v))
        scores = torch.einsum("qhe,khe->hqk", q, k) / 8**0.5
        if causal:
            scores = scores.masked_fill(
                torch.ones(stop - start, stop - start).triu(1).bool(), -torch.inf
            )
        expected = torch.einsum("hqk,khe->qhe", scores.softmax(-1), v)
        torch.testing.assert_close(output[start:stop].double(), expected, atol=1e-5, rtol=1e-5)


def test_a_query_without_a_key_gets_zeros() -> None:
    """Proves the bottom-right alignment where there are more queries than keys."""
    inputs = packed(4)
    inputs["k"], inputs["v"] = inputs["k"][:2], inputs["v"][:2]
    inputs["cu_seqlens_k"] = torch.tensor([0, 2], dtype=torch.int32)
    output = flash_attn_varlen_func(**inputs, causal=True)
    assert torch.isfinite(output).all()
    assert (output[:2] == 0).all()
    assert (output[2:] != 0).any()


def test_clean_inputs_reach_the_kernel_unchanged() -> None:
    """Proves that the guard changes no bit."""
    kernel = Stand()
    guarded = GuardedVarlen(kernel)
    inputs = packed(3, 5)
    assert torch.equal(guarded(**inputs, causal=True), kernel(**inputs, causal=True))
    assert guarded.degraded == ()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cu_seqlens_k", torch.tensor([0, 3, 9], dtype=torch.int32)),
        ("cu_seqlens_k", torch.tensor([0, 5, 3], dtype=torch.int32)),
        ("cu_seqlens_k", torch.tensor([1, 3, 8], dtype=torch.int32)),
        ("cu_seqlens_q", torch.tensor([0, 3, 8], dtype=torch.int64)),
        ("max_seqlen_k", 4),
        ("k", torch.zeros(8, 2, 6)),
    ],
    ids=["beyond the end", "decreasing", "not from zero", "int64", "max too small", "head size"],
)
def test_a_wrong_input_is_never_launched(name: str, value: Any) -> None:
    """Proves that the kernel is not called on what would make it read out of bounds."""
    kernel = Stand()
    guarded = GuardedVarlen(kernel)
    with pytest.raises(CheckFailed):
        guarded(**{**packed(3, 5), name: value})
    assert kernel.launches == 0
    guarded(**packed(3, 5))
    assert kernel.launches == 1


def test_an_empty_batch_is_a_defined_answer() -> None:
    """Proves that no sequence at all is not an error, and launches nothing."""
    kernel = Stand()
    empty = {
        **packed(3),
        **{name: torch.zeros(0, heads, 8) for name, heads in (("q", 4), ("k", 2), ("v", 2))},
        "cu_seqlens_q": torch.zeros(1, dtype=torch.int32),
        "cu_seqlens_k": torch.zeros(1, dtype=torch.int32),
        "max_seqlen_q": 0,
        "max_seqlen_k": 0,
    }
    assert GuardedVarlen(kernel)(**empty).shape == (0, 4, 8)
    assert kernel.launches == 0


def test_three_failures_in_a_row_move_to_sdpa_and_a_trial_brings_it_back() -> None:
    """Proves the breaker around the kernel: same answers, a label, back by itself."""
    kernel, clock = Stand(), ManualClock()
    guarded = GuardedVarlen(kernel, breaker=Breaker(("flash", "sdpa"), clock=clock, cooldown_s=5))
    inputs = packed(3, 5)
    right = kernel(**inputs)
    kernel.fails = True
    for _ in range(3):
        assert torch.equal(guarded(**inputs), right)
        assert guarded.degraded == ("attention:sdpa",)
    assert guarded.breaker.state() is BreakerState.OPEN
    launches = kernel.launches
    guarded(**inputs)
    assert kernel.launches == launches
    kernel.fails = False
    clock.sleep(5)
    guarded(**inputs)
    assert kernel.launches == launches + 1
    assert guarded.breaker.state() is BreakerState.CLOSED
    assert guarded.degraded == ()


def test_a_wrong_output_is_not_handed_out() -> None:
    """Proves that a NaN of the kernel is replaced by the fallback's answer."""
    kernel = Stand()
    guarded = GuardedVarlen(kernel)
    inputs = packed(3, 5)
    right = kernel(**inputs)
    kernel.poison = True
    assert torch.equal(guarded(**inputs), right)
    assert guarded.breaker.status()["circuits"]["flash"]["failures"] == 1  # type: ignore[index]


def test_low_memory_moves_to_sdpa_and_back() -> None:
    """Proves the watermark's say."""
    kernel, watermark = Stand(), Watermark(2 * GIB, GIB)
    guarded = GuardedVarlen(kernel, watermark=watermark)
    watermark.observe(GIB + 1)
    guarded(**packed(3))
    assert kernel.launches == 0
    watermark.observe(3 * GIB)
    guarded(**packed(3))
    assert kernel.launches == 1


def test_a_second_thread_cannot_launch_through_a_held_lock() -> None:
    """Proves that two threads on one guarded function get an error, not a mixed batch."""
    lock = VarlenLock()
    guarded = GuardedVarlen(Stand(), lock=lock)
    with lock.hold(metadata(3)):
        assert isinstance(in_thread(lambda: guarded(**packed(3))), ContractError)
