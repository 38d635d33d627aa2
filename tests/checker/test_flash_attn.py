"""The flash-attn adapter is held to the real package's signatures, and guards all its functions."""

import inspect
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tocsin.checker.attach import flash_attn_table, flash_sdpa
from tocsin.checker.attach.flash_attn import GuardedFlash, GuardedKernel
from tocsin.checker.attach.flash_attn_table import FUNCTIONS, signatures, signatures_of
from tocsin.checker.breaker import Breaker
from tocsin.checker.watermark import Level, Watermark
from tocsin.core.clock import ManualClock
from tocsin.core.errors import CheckFailed, ContractError, SpecError
from tocsin.core.terms import BreakerState

GIB = 1 << 30


def taken(function: Callable[..., Any]) -> tuple[tuple[str, str | None], ...]:
    """A function's parameters as the table writes them."""
    return tuple(
        (name, None if one.default is one.empty else repr(one.default))
        for name, one in inspect.signature(function).parameters.items()
    )


@pytest.mark.parametrize("name", FUNCTIONS)
def test_stand_in_and_guard_have_the_real_signature(name: str) -> None:
    """Proves names, order and defaults against flash-attn's own source; a difference is red."""
    assert taken(getattr(flash_sdpa, name)) == signatures()[name]
    assert taken(getattr(GuardedFlash(flash_sdpa), name)) == signatures()[name]


def test_a_difference_of_one_default_would_be_seen() -> None:
    """Proves that the comparison above can fail: order, name and default each make a difference."""
    real = signatures()["flash_attn_func"]

    def other(q, k, v, dropout_p=0.0, softmax_scale=None, causal=True):  # type: ignore[no-untyped-def]
        """As flash_attn_func, with another default."""

    assert taken(other) != real[:6]
    assert [name for name, _ in taken(other)] == [name for name, _ in real[:6]]


def test_the_table_says_where_it_comes_from() -> None:
    """Proves version, licence and digest of the sdist, so that the table can be checked anew."""
    facts = flash_attn_table.table()
    assert facts["version"] == "2.8.3.post2"
    assert facts["licence"].startswith("BSD 3-Clause")
    assert len(facts["sdist_sha256"]) == 64
    assert tuple(facts["functions"]) == FUNCTIONS


def sdist(folder: Path, interface: str) -> Path:
    """A source distribution with this interface."""
    path = folder / "flash_attn-9.9.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, text in (
            ("PKG-INFO", "Metadata-Version: 2.1\nName: flash-attn\nVersion: 9.9\n"),
            ("LICENSE", "BSD 3-Clause License\n"),
            ("flash_attn/flash_attn_interface.py", interface),
        ):
            info = tarfile.TarInfo(f"flash_attn-9.9/{name}")
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    return path


def interface(**changed: str) -> str:
    """The text of an interface with the table's signatures, some of them changed."""
    written = {**flash_attn_table.table()["functions"], **changed}
    return "\n".join(f"def {name}({of}):\n    return 1" for name, of in written.items())


def test_the_refresh_reads_an_sdist_as_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Proves the script: it writes the table of another version, whose changes then show."""
    monkeypatch.setattr(flash_attn_table, "TABLE", tmp_path / "table.json")
    source = interface(flash_attn_func="q, k, v, sinks=None")
    assert flash_attn_table.main([str(sdist(tmp_path, source))]) == 0
    written = json.loads((tmp_path / "table.json").read_text())
    assert written["version"] == "9.9"
    assert written["functions"]["flash_attn_func"] == "q, k, v, sinks=None"
    assert (
        written["functions"]["flash_attn_with_kvcache"]
        == (flash_attn_table.table()["functions"]["flash_attn_with_kvcache"])
    )
    assert "7 functions of flash-attn 9.9" in capsys.readouterr().out


def test_an_interface_without_a_guarded_function_is_refused(tmp_path: Path) -> None:
    """Proves that a dropped or re-formed function is an error, not a smaller table."""
    with pytest.raises(SpecError, match="found no flash_attn_with_kvcache"):
        signatures_of(interface().replace("flash_attn_with_kvcache", "gone"))
    with pytest.raises(SpecError, match="other than plain parameters"):
        signatures_of(interface(flash_attn_func="q, *rest"))
    path = tmp_path / "other.tar.gz"
    with tarfile.open(path, "w:gz"):
        pass
    with pytest.raises(SpecError, match=r"expected a\s+source distribution"):
        flash_attn_table.read_sdist(path)


# ── calls ───────────────────────────────────────────────────────────────────────────────────────

HEADS, KV_HEADS, SIZE = 4, 2, 8


def values(*shape: int, seed: int = 3) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def offsets(*lengths: int) -> Tensor:
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)


def call_of(name: str) -> dict[str, Any]:
    """A valid call of each function: two rows, grouped heads where the function allows them."""
    q = values(2, 3, HEADS, SIZE)
    k, v = values(2, 2, 5, KV_HEADS, SIZE, seed=4).unbind(0)
    flat_q, flat_k, flat_v = (one.flatten(0, 1) for one in (q, k, v))
    packed = {"cu_seqlens_q": offsets(2, 4), "cu_seqlens_k": offsets(4, 6)}
    longest = {"max_seqlen_q": 4, "max_seqlen_k": 6}
    match name:
        case "flash_attn_func":
            return {"q": q, "k": k, "v": v}
        case "flash_attn_kvpacked_func":
            return {"q": q, "kv": torch.stack((k, v), 2)}
        case "flash_attn_qkvpacked_func":
            return {"qkv": values(2, 5, 3, HEADS, SIZE)}
        case "flash_attn_varlen_func":
            return {"q": flat_q, "k": flat_k, "v": flat_v, **packed, **longest}
        case "flash_attn_varlen_kvpacked_func":
            return {"q": flat_q, "kv": torch.stack((flat_k, flat_v), 1), **packed, **longest}
        case "flash_attn_varlen_qkvpacked_func":
            return {"qkv": values(6, 3, HEADS, SIZE), "cu_seqlens": offsets(2, 4), "max_seqlen": 4}
    return {
        "q": q[:, :1],
        "k_cache": values(2, 8, KV_HEADS, SIZE, seed=6),
        "v_cache": values(2, 8, KV_HEADS, SIZE, seed=7),
        "k": k[:, :1],
        "v": v[:, :1],
        "cache_seqlens": torch.tensor([5, 3], dtype=torch.int32),
    }


class Stand:
    """The CPU stand-in of one function: right, raising or wrong on demand; counts its launches."""

    def __init__(self, name: str) -> None:
        self.real = getattr(flash_sdpa, name)
        self.launches = 0
        self.fails = False
        self.spoil: Callable[[Tensor], None] = lambda output: None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.launches += 1
        if self.fails:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        result = self.real(*args, **kwargs)
        self.spoil(result[0] if isinstance(result, tuple) else result)
        return result


def guarded(name: str, **options: Any) -> tuple[GuardedKernel, Stand, ManualClock]:
    clock = ManualClock()
    stand = Stand(name)
    breaker = Breaker(("flash", "sdpa"), clock=clock, cooldown_s=30.0)
    return GuardedKernel(name, stand, breaker=breaker, **options), stand, clock


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("causal", [False, True])
def test_a_clean_call_passes_with_the_kernels_own_bits(name: str, causal: bool) -> None:
    """Proves for each function that the guard changes nothing and alarms on nothing."""
    kernel, stand, _ = guarded(name)
    for _ in range(4):  # every row comes to be the one that is looked at in full
        got = kernel(**call_of(name), causal=causal)
        assert torch.equal(got, getattr(flash_sdpa, name)(**call_of(name), causal=causal))
    assert stand.launches == 4
    assert kernel.degraded == ()


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(
    "options",
    [
        {"window_size": (2, 1)},
        {"softcap": 5.0},
        {"alibi_slopes": torch.tensor([0.5, 0.25, 0.1, 0.7]), "causal": True},
        {"softmax_scale": 0.5},
    ],
    ids=["window", "softcap", "alibi", "scale"],
)
def test_options_of_the_scores_are_part_of_what_is_checked(
    name: str, options: dict[str, Any]
) -> None:
    """Proves that windows, caps, slopes and scales raise no alarm, with the lse looked at too."""
    kernel, stand, _ = guarded(name)
    flag = "return_softmax_lse" if name.endswith("kvcache") else "return_attn_probs"
    for _ in range(2):
        output, lse, *_ = kernel(**call_of(name), **options, **{flag: True})
        assert torch.isfinite(output).all()
        assert torch.isfinite(lse).all()
    assert stand.launches == 2


@pytest.mark.parametrize("name", FUNCTIONS)
def test_three_failures_open_the_breaker_and_a_probe_closes_it(name: str) -> None:
    """Proves the way to SDPA: same answer, labelled; open after three; one trial a cooldown."""
    kernel, stand, clock = guarded(name)
    expected = getattr(flash_sdpa, name)(**call_of(name))
    stand.fails = True
    for round_number in range(5):
        assert torch.equal(kernel(**call_of(name)), expected)
        assert kernel.degraded == ("attention:sdpa",)
        assert stand.launches == min(round_number + 1, 3)
    assert kernel.breaker.state() is BreakerState.OPEN
    clock.sleep(31.0)
    kernel(**call_of(name))  # the probe fails: open again at once
    assert (stand.launches, kernel.breaker.state()) == (4, BreakerState.OPEN)
    stand.fails = False
    kernel(**call_of(name))
    assert stand.launches == 4
    clock.sleep(31.0)
    assert torch.equal(kernel(**call_of(name)), expected)
    assert kernel.degraded == ()
    assert (stand.launches, kernel.breaker.state()) == (5, BreakerState.CLOSED)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_finite_wrong_answer_is_found_within_a_turn(name: str) -> None:
    """Proves the sampled row: an error that is finite is found when its row is due."""
    kernel, stand, _ = guarded(name)

    def spoil(output: Tensor) -> None:
        output.view(-1, SIZE)[0] *= 1.5  # a head of the first query of row 0

    stand.spoil = spoil
    answers = [kernel(**call_of(name)) for _ in range(2)]
    right = getattr(flash_sdpa, name)(**call_of(name))
    assert [torch.equal(answer, right) for answer in answers].count(True) == 1
    assert stand.launches == 2


@pytest.mark.parametrize("name", FUNCTIONS)
def test_nan_in_any_row_is_found_at_once(name: str) -> None:
    """Proves that numbers are looked at in all rows, whichever row is due."""
    kernel, stand, _ = guarded(name)
    right = getattr(flash_sdpa, name)(**call_of(name))
    for place in (0, -1):

        def spoil(output: Tensor, place: int = place) -> None:
            output.view(-1)[place] = torch.nan

        stand.spoil = spoil
        assert torch.equal(kernel(**call_of(name)), right)


METADATA = {
    "flash_attn_varlen_func": "cu_seqlens_k",
    "flash_attn_varlen_kvpacked_func": "cu_seqlens_q",
    "flash_attn_varlen_qkvpacked_func": "cu_seqlens",
    "flash_attn_with_kvcache": "cache_seqlens",
}


class Meddling(Watermark):
    """A reading of memory that also writes into metadata: what another thread would do."""

    def __init__(self, metadata: Tensor) -> None:
        super().__init__(1, 1)
        self.metadata = metadata
        self.reads = 0

    @property
    def level(self) -> Level:
        self.reads += 1
        if self.reads == 2:  # after the check of the inputs, before the launch
            self.metadata[-1] -= 1
        return Level.AMPLE

    @level.setter
    def level(self, level: Level) -> None:
        self._level = level


@pytest.mark.parametrize("name", METADATA)
def test_metadata_that_changes_before_the_launch_is_seen(name: str) -> None:
    """Proves the lock for every function with metadata: nothing is launched on changed lengths."""
    given = call_of(name)
    meddling = Meddling(given[METADATA[name]])
    kernel, stand, _ = guarded(name, watermark=meddling)
    with pytest.raises(ContractError, match="changed after it was checked"):
        kernel(**given)
    assert stand.launches == 0
    assert meddling.reads == 2
    kernel(**call_of(name))
    assert stand.launches == 1


def lengths_of(*each: int) -> Tensor:
    return torch.tensor(each, dtype=torch.int32)


KVCACHE = "flash_attn_with_kvcache"


@pytest.mark.parametrize(
    ("name", "change"),
    [
        pytest.param("flash_attn_func", {"k": values(2, 5, 3, SIZE)}, id="heads"),
        pytest.param("flash_attn_kvpacked_func", {"kv": values(2, 5, 2, 2, 6)}, id="head size"),
        pytest.param("flash_attn_varlen_func", {"max_seqlen_k": 3}, id="max too small"),
        pytest.param(
            "flash_attn_varlen_kvpacked_func", {"cu_seqlens_k": offsets(4, 9)}, id="beyond"
        ),
        pytest.param("flash_attn_varlen_qkvpacked_func", {"cu_seqlens": offsets(2, 3)}, id="short"),
        pytest.param(KVCACHE, {"cache_seqlens": lengths_of(5, 8)}, id="cache is full"),
        pytest.param(KVCACHE, {"cache_batch_idx": lengths_of(0, 2)}, id="row beyond"),
        pytest.param(
            KVCACHE, {"cache_batch_idx": lengths_of(1, 1), "cache_seqlens": 4}, id="one row twice"
        ),
        pytest.param(KVCACHE, {"k": values(2, 1, 1, SIZE)}, id="heads of new keys"),
    ],
)
def test_a_wrong_input_is_never_launched(name: str, change: dict[str, Any]) -> None:
    """Proves that what would read or write out of bounds, or over another row, is stopped."""
    kernel, stand, _ = guarded(name)
    with pytest.raises(CheckFailed):
        kernel(**{**call_of(name), **change})
    assert stand.launches == 0
    kernel(**call_of(name))
    assert stand.launches == 1


def paged(table: list[list[int]], lengths: list[int], **extra: Any) -> dict[str, Any]:
    """A decode call over pages of 4 positions."""
    return {
        "q": values(2, 1, HEADS, SIZE),
        "k_cache": values(6, 4, KV_HEADS, SIZE, seed=6),
        "v_cache": values(6, 4, KV_HEADS, SIZE, seed=7),
        "cache_seqlens": torch.tensor(lengths, dtype=torch.int32),
        "block_table": torch.tensor(table, dtype=torch.int32),
        **extra,
    }


def test_pages_may_be_shared_to_read_and_not_to_write() -> None:
    """Proves the block table: a shared prefix is legal, a shared page that is written is not."""
    kernel, stand, _ = guarded("flash_attn_with_kvcache")
    kernel(**paged([[3, 1], [3, 5]], [6, 5]))
    assert stand.launches == 1
    new = {"k": values(2, 1, KV_HEADS, SIZE), "v": values(2, 1, KV_HEADS, SIZE)}
    with pytest.raises(CheckFailed):
        kernel(**paged([[3, 1], [2, 1]], [6, 6], **new))
    for table, lengths in (
        ([[3, 6], [2, 1]], [6, 6]),
        ([[3, 1], [-1, 1]], [6, 6]),
        ([[3, 1], [2, 0]], [6, 9]),
    ):
        with pytest.raises(CheckFailed):
            kernel(**paged(table, lengths))
    assert stand.launches == 1


def test_a_paged_varlen_call_is_held_to_its_block_table() -> None:
    """Proves prefill over pages: what lies outside the pages is not launched."""
    kernel, stand, _ = guarded("flash_attn_varlen_func")
    given = call_of("flash_attn_varlen_func")
    pages = values(5, 4, KV_HEADS, SIZE)
    table = torch.tensor([[4, 0], [1, 2]], dtype=torch.int32)
    given.update(k=pages, v=pages, block_table=table)
    assert kernel(**given, causal=True).shape == given["q"].shape
    with pytest.raises(CheckFailed):
        kernel(**{**given, "block_table": table + 1}, causal=True)
    assert stand.launches == 1


@pytest.mark.parametrize("interleaved", [True, False], ids=["interleaved", "halves"])
def test_the_cache_stand_in_equals_plain_attention(interleaved: bool) -> None:
    """Proves append, rotation and lengths of the stand-in, contiguous and paged, row by row."""
    angles = torch.outer(torch.arange(16.0), torch.tensor([1.0, 0.3]))
    cos, sin = angles.cos(), angles.sin()
    q = values(2, 2, HEADS, SIZE)
    k, v = values(2, 2, 2, KV_HEADS, SIZE, seed=8).unbind(0)
    k_cache, v_cache = values(2, 2, 8, KV_HEADS, SIZE, seed=1).unbind(0)
    table = torch.tensor([[2, 0], [1, 3]], dtype=torch.int32)
    k_pages, v_pages = torch.zeros(2, 4, 4, KV_HEADS, SIZE).unbind(0)
    for pages, cache in ((k_pages, k_cache), (v_pages, v_cache)):
        pages[table.flatten().long()] = cache.reshape(4, 4, KV_HEADS, SIZE)
    starts = (3, 5)
    options = {"rotary_cos": cos, "rotary_sin": sin, "rotary_interleaved": interleaved}
    options |= {"causal": True, "cache_seqlens": lengths_of(*starts)}
    decode = flash_sdpa.flash_attn_with_kvcache
    plain = decode(q, k_cache, v_cache, k, v, **options)
    torch.testing.assert_close(
        plain, decode(q, k_pages, v_pages, k, v, block_table=table, **options), atol=1e-6, rtol=0
    )
    for row, start in enumerate(starts):
        at = torch.arange(start, start + 2)
        torch.testing.assert_close(k_cache[row, at], turned(k[row], angles[at], interleaved))
        torch.testing.assert_close(v_cache[row, at], v[row])
        expected, _ = flash_sdpa.attend(
            turned(q[row], angles[at], interleaved),
            k_cache[row, : start + 2],
            v_cache[row, : start + 2],
            flash_sdpa.Form(causal=True),
        )
        torch.testing.assert_close(plain[row], expected, atol=1e-6, rtol=1e-5)


def turned(x: Tensor, angle: Tensor, interleaved: bool) -> Tensor:
    """The first four features as two complex numbers, turned by an angle each [S,2]."""
    pairs = x[..., :4].unflatten(-1, (2, 2))
    pairs = pairs if interleaved else pairs.transpose(-1, -2)
    phases = torch.polar(torch.ones_like(angle), angle)[:, None]
    made = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * phases)
    made = made if interleaved else made.transpose(-1, -2)
    return torch.cat((made.flatten(-2), x[..., 4:]), dim=-1)


def test_low_memory_moves_every_function_to_the_lighter_way() -> None:
    """Proves the watermark for all functions of one module, whose breaker they share."""
    watermark = Watermark(2 * GIB, GIB)
    stands = {name: Stand(name) for name in FUNCTIONS}
    flash = GuardedFlash(SimpleNamespace(**stands), watermark=watermark)
    watermark.observe(GIB + 1)
    for name in FUNCTIONS:
        getattr(flash, name)(**call_of(name))
        assert getattr(flash, name).degraded == ("attention:sdpa",)
    assert not any(stand.launches for stand in stands.values())
    watermark.observe(3 * GIB)
    for name in FUNCTIONS:
        getattr(flash, name)(**call_of(name))
    assert all(stand.launches == 1 for stand in stands.values())


def test_one_module_one_breaker_and_a_missing_function_is_told() -> None:
    """Proves that three failures in different functions count together; gaps are in `skipped`."""
    stands = {name: Stand(name) for name in FUNCTIONS[:3]}
    flash = GuardedFlash(SimpleNamespace(**stands))
    assert set(flash.skipped) == set(FUNCTIONS[3:])
    for name, stand in stands.items():
        stand.fails = True
        getattr(flash, name)(**call_of(name))
    assert flash.breaker.state() is BreakerState.OPEN
    with pytest.raises(AttributeError, match="it guards"):
        flash.flash_attn_with_kvcache  # noqa: B018 - the look-up is what is tested
    with pytest.raises(ContractError, match="found none of"):
        GuardedFlash(SimpleNamespace())
    with pytest.raises(ContractError, match="found function 'flash'"):
        GuardedKernel("flash", Stand(FUNCTIONS[0]))


def test_an_argument_of_a_wrong_kind_is_told_by_name() -> None:
    """Proves that a call which cannot even be looked at is the caller's error, not a crash."""
    kernel, stand, _ = guarded("flash_attn_kvpacked_func")
    with pytest.raises(ContractError, match="flash_attn_kvpacked_func"):
        kernel(values(2, 3, HEADS, SIZE), values(2, 5))
    assert stand.launches == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="flash-attn's kernels need a CUDA device")
class TestTheRealPackage:
    """Where flash-attn can be imported, the same is held to the package itself."""

    def test_the_installed_package_has_the_tables_signatures(self) -> None:
        """Proves the table against what is installed; another version shows here."""
        flash_attn = pytest.importorskip("flash_attn")
        for name in FUNCTIONS:
            assert taken(getattr(flash_attn, name)) == signatures()[name]

    @pytest.mark.parametrize("name", FUNCTIONS)
    @pytest.mark.parametrize("causal", [False, True])
    def test_the_kernels_and_the_stand_ins_compute_the_same(self, name: str, causal: bool) -> None:
        """Proves the way out against the kernel itself, and that the guard passes the latter."""
        flash_attn = pytest.importorskip("flash_attn")
        given = {
            key: value.to("cuda", torch.float16 if value.is_floating_point() else value.dtype)
            if isinstance(value, Tensor)
            else value
            for key, value in call_of(name).items()
        }
        own = {key: one.clone() if isinstance(one, Tensor) else one for key, one in given.items()}
        guard = GuardedFlash(flash_attn)
        got = getattr(guard, name)(**given, causal=causal)
        assert getattr(guard, name).degraded == ()
        expected = getattr(flash_sdpa, name)(**own, causal=causal)
        torch.testing.assert_close(got, expected, atol=2e-3, rtol=2e-3)
