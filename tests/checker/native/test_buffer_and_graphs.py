"""Native results reach the verdict buffer, eager and in a compiled graph, without a break."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tocsin.checker import native
from tocsin.checker.buffer import VerdictBuffer

pytestmark = pytest.mark.slow

OPS = torch.ops.tocsin


@pytest.fixture(autouse=True, scope="module")
def _built() -> None:
    if not native.available():
        pytest.skip(native.reason())


@pytest.mark.parametrize("rows", [None, 0, 2, 3, 6, 64, 70])
@pytest.mark.parametrize("tokens", [1, 6])
def test_a_native_write_is_what_the_buffer_would_write(rows: int | None, tokens: int) -> None:
    """Proves the reduction to rows, the last column and the maximum against the Python buffer."""
    generator = torch.Generator().manual_seed(4)
    ratios = torch.rand(2, 3, tokens, generator=generator)
    ratios[1, 2, -1] = math.nan
    held = torch.rand(16, 65, generator=generator)
    sites = torch.tensor([[3, 0, 7], [5, 4, 9]])
    python, cpp = VerdictBuffer(sites_max=16), VerdictBuffer(sites_max=16)
    python.data.copy_(held)
    cpp.data.copy_(held)
    for kind in range(2):
        python.write_many(tuple(sites[kind].tolist()), ratios[kind], rows)
    OPS.write_into(cpp.data, sites, -1 if rows is None else rows, ratios)
    assert torch.equal(cpp.data.nan_to_num(9e9), python.data.nan_to_num(9e9))


def test_an_into_form_writes_what_the_plain_form_returns() -> None:
    """Proves that both forms are one function, that -1 writes nothing, and that NaN stays."""
    x, delta = torch.randn(2, 3, 64), torch.randn(2, 3, 64)
    y = x + delta
    y[1, 2, 7] = math.nan
    buffer = torch.zeros(8, 65)
    OPS.residual_into(buffer, torch.tensor([[4], [-1]]), 2, [x], [delta], [y])
    expected = OPS.residual([x], [delta], [y])[0, 0].view(2, 3).amax(dim=1)
    assert torch.equal(buffer[4, :2].nan_to_num(7.0), expected.nan_to_num(7.0))
    assert math.isnan(buffer[4, 1])
    buffer[4] = 0
    assert not buffer.any()
    with pytest.raises(IndexError):
        OPS.residual_into(buffer, torch.tensor([[8], [-1]]), 2, [x], [delta], [y])


def test_the_verdict_keeps_the_worst_of_each_site_that_is_on() -> None:
    """Proves the one reduction of a step: NaN and infinity win, a level of 0 silences them."""
    buffer = torch.zeros(6, 65)
    buffer[0, 3], buffer[1, 64], buffer[2, 0], buffer[3, 1] = 0.5, math.inf, math.nan, math.nan
    levels = torch.tensor([1.0, 1.0, 1.0, 0.0, 1.0, 0.5, 1.0])
    buffer[5, 20] = 4.0
    found = OPS.verdict(buffer, levels)
    assert found[[0, 1, 3, 4, 5]].tolist() == [0.5, math.inf, 0.0, 0.0, 2.0]
    assert math.isnan(found[2])


def test_equal_forms_are_told_from_others() -> None:
    """Proves that shape, stride and dtype each tell two tensors apart."""
    like = torch.zeros(4, 6)
    same = [torch.ones(4, 6), like]
    assert OPS.same_form(same, like)
    for other in (torch.zeros(6, 4), torch.zeros(6, 4).mT, like.bfloat16(), like[:, :3]):
        assert not OPS.same_form([*same, other], like)


class Checked(nn.Module):
    """A layer that writes its own ratios while it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(64, eps=1e-5)
        self.linear = nn.Linear(64, 96, bias=False)
        weight = self.linear.weight.detach()
        self.sums = weight.sum(dim=0, keepdim=True)
        self.norms = weight.norm()[None]
        self.register_buffer("verdicts", torch.zeros(8, 65), persistent=False)
        self.register_buffer("norm_sites", torch.tensor([[0], [1], [2]]), persistent=False)
        self.register_buffer("linear_sites", torch.tensor([[3], [4]]), persistent=False)
        self.broken = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        buffer: Any = self.verdicts
        y = self.norm(x)
        OPS.rms_norm_into(buffer, self.norm_sites, -1, [x], [y], [self.norm.weight], 1e-5)
        z: Tensor = self.linear(y) + self.broken
        empty: list[Tensor] = []
        OPS.linear_checksum_into(
            buffer, self.linear_sites, -1, [y], [z], [self.sums], [self.norms], empty, empty
        )
        return z


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore")
def test_a_compiled_layer_keeps_its_checks_without_a_graph_break(backend: str) -> None:
    """Proves that fullgraph holds, that the buffer gets the same ratios, and that faults alarm."""
    layer = Checked().eval()
    x = torch.randn(8, 1, 64)
    with torch.no_grad():
        plain = layer(x)
        expected = layer.verdicts.clone()
        layer.verdicts.zero_()
        torch._dynamo.reset()
        compiled: Any = torch.compile(layer, fullgraph=True, backend=backend)
        assert torch.allclose(compiled(x), plain, atol=1e-6)
        assert bool((expected[:5, :8] <= 1).all())
        assert bool(expected[:5].any())
        assert torch.allclose(layer.verdicts, expected, atol=0.3)
        layer.verdicts.zero_()
        layer.broken.fill_(math.nan)
        compiled(x)
        assert bool(layer.verdicts[3:5, :8].isnan().all())
        assert bool((layer.verdicts[:3] <= 1).all())
    torch._dynamo.reset()


def samples() -> dict[str, tuple[Any, ...]]:
    """Arguments of each operator that has a fake."""
    x, w = torch.randn(2, 3, 64), torch.ones(64)
    q, k = torch.randn(2, 4, 1, 64), torch.randn(2, 2, 5, 64)
    table = torch.randn(2, 1, 64)
    new, cache = torch.randn(3, 2, 8), torch.zeros(2, 4, 2, 8)
    return {
        "linear_checksum": ([x], [x], [torch.randn(1, 64)], [torch.ones(1)], [], []),
        "rms_norm": ([x, x], [x, x], [w, w], 1e-5),
        "residual": ([x], [x], [x]),
        "swiglu": ([x], [x], [x]),
        "rope": ([q], [k[:, :, :1]], [q], [k[:, :, :1]], [table], [table]),
        "rope_table": (table, table, torch.zeros(2, 1, dtype=torch.int64), None, 2),
        "attention": ([q], [k], [k], [q], [], [], []),
        "kv_written": ([cache], [cache], [new], [new], torch.tensor([0, 1, 2])),
        "logits": (x, x, None),
        "magnitude": ([x, x],),
        "embedding": ([torch.tensor([0, 1])], [torch.randn(4, 8)], [torch.randn(2, 8)]),
        "word_sums": (x,),
        "word_sums_at": (x, torch.tensor([1])),
        "verdict": (torch.zeros(4, 65), torch.ones(4)),
    }


@pytest.mark.parametrize("name", samples())
def test_what_the_compiler_is_told_is_what_comes(name: str) -> None:
    """Proves each fake: shape and dtype of the real result, and a schema that says what changes."""
    arguments = samples()[name]
    operator = getattr(OPS, name).default
    torch.library.opcheck(
        operator,
        arguments,
        test_utils=("test_schema", "test_faketensor", "test_aot_dispatch_dynamic"),
    )


@pytest.mark.parametrize("name", ["residual", "attention", "magnitude", "rms_norm"])
def test_an_into_form_says_that_it_changes_the_buffer_only(name: str) -> None:
    """Proves the declared mutation of an `_into` form against what it does."""
    plain = samples()[name]
    kinds, calls = getattr(OPS, name)(*plain).shape[:2]
    sites = torch.arange(kinds * calls).view(kinds, calls)
    torch.library.opcheck(
        getattr(OPS, f"{name}_into").default,
        (torch.zeros(16, 65), sites, -1, *plain),
        test_utils=("test_schema", "test_faketensor", "test_aot_dispatch_dynamic"),
    )
