"""The attention backends: right numbers, bits that depend on the row alone, and honest leaks."""

import pytest
import torch
from torch import Tensor

from tocsin.core.errors import BackendError
from tocsin.engine.attention import launch_of, varlen_call
from tocsin.engine.backends import Launch, attend

PAGE = 16
NAMES = ("flash", "sdpa", "math")
HEADS, KEY_HEADS, SIZE = 9, 3, 64  # SmolLM2's


def made_up(
    lengths_k: list[int], positions: int = 1, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor, Launch]:
    """q, k, v and the launch of rows of these lengths, gathered as wide as the longest."""
    torch.manual_seed(seed)
    rows, width = len(lengths_k), -(-max(lengths_k) // PAGE) * PAGE
    q = torch.randn(rows, HEADS, positions, SIZE)
    k, v = (torch.randn(rows, width, KEY_HEADS, SIZE).transpose(1, 2) for _ in range(2))
    call = varlen_call([positions] * rows, lengths_k)
    return q, k, v, launch_of(call, width, positions, HEADS // KEY_HEADS, PAGE, like=q)


def plain(q: Tensor, k: Tensor, v: Tensor, length: int) -> Tensor:
    """One row in float64, the textbook way, causal at the bottom right."""
    groups = q.shape[0] // k.shape[0]
    k, v = (one[:, :length].double().repeat_interleave(groups, 0) for one in (k, v))
    scores = q.double() @ k.transpose(1, 2) / q.shape[-1] ** 0.5
    size = q.shape[1]
    seen = torch.arange(length) <= torch.arange(size)[:, None] + length - size
    return torch.softmax(scores.masked_fill(~seen, float("-inf")), -1) @ v


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("positions", [1, 5, 32])
def test_every_backend_computes_attention(name: str, positions: int) -> None:
    """Against float64 written out, for decode, odd and whole chunks, one page and many."""
    lengths = [positions, 33, 47, 160] if positions < 33 else [160]
    lengths = [max(positions, length) for length in lengths]
    q, k, v, launch = made_up(lengths, positions)
    output = attend(name, q, k, v, launch, SIZE**-0.5)
    for row, length in enumerate(lengths):
        expected = plain(q[row], k[row], v[row], length)
        assert torch.allclose(output[row].double(), expected, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_a_row_has_the_bits_it_has_alone(name: str) -> None:
    """Every length from 1 to 130 beside longer, shorter and equal neighbours."""
    for length in range(1, 131):
        lengths = [length, (length * 37) % 200 + 1, length, (length * 11) % 90 + 1]
        q, k, v, launch = made_up(lengths, seed=length)
        together = attend(name, q, k, v, launch, SIZE**-0.5)
        for row in (0, 2):
            one, width = slice(row, row + 1), -(-length // PAGE) * PAGE
            by_itself = launch_of(varlen_call([1], [length]), width, 1, 3, PAGE, like=q)
            alone = attend(name, q[one], k[one, :, :width], v[one, :, :width], by_itself, 0.125)
            assert torch.equal(together[row], alone[0]), f"length {length} row {row}"


@pytest.mark.parametrize("name", NAMES)
def test_nan_in_the_hidden_tail_of_a_value_page_leaks(name: str) -> None:
    """As in real paged kernels: 0 * NaN; only the row whose page it is suffers."""
    q, k, v, launch = made_up([20, 20])
    v[0, :, 25] = float("nan")
    output = attend(name, q, k, v, launch, 0.125)
    assert output[0].isnan().all()
    assert not output[1].isnan().any()


@pytest.mark.parametrize("name", NAMES)
def test_finite_rubbish_in_the_hidden_tail_changes_no_bit(name: str) -> None:
    """The nearest miss: what is masked and finite has no weight at all."""
    q, k, v, launch = made_up([20, 35])
    expected = attend(name, q, k, v, launch, 0.125)
    for tensor in (k, v):
        tensor[0, :, 20:] = 1e30
    assert torch.equal(attend(name, q, k, v, launch, 0.125), expected)


def test_metadata_decides_what_is_seen() -> None:
    """A shorter length, a smaller maximum or a wrong dtype changes the answer: nothing raises."""
    q, k, v, honest = made_up([40, 50])
    expected = attend("flash", q, k, v, honest, 0.125)
    short = varlen_call([1, 1], [40, 50])
    short.cu_seqlens_k[2] -= 20
    small = varlen_call([1, 1], [40, 50])
    small.max_seqlen_k = 30
    wide = varlen_call([1, 1], [40, 50])
    wide.cu_seqlens_k = wide.cu_seqlens_k.to(torch.int64)
    for call in (short, small, wide):
        launch = launch_of(call, k.shape[2], 1, 3, PAGE, like=q)
        assert not torch.equal(attend("flash", q, k, v, launch, 0.125), expected)


@pytest.mark.parametrize("name", NAMES)
def test_a_launch_under_another_mask_attends_as_that_one_says(name: str) -> None:
    """Bool or added to the scores; under its own mask a launch keeps its bits."""
    q, k, v, launch = made_up([40, 50])
    expected = attend(name, q, k, v, launch, 0.125)
    assert torch.equal(attend(name, q, k, v, launch.under(launch.mask), 0.125), expected)
    mask = launch.mask.clone()
    mask[0, ..., 30:] = False
    added = torch.zeros(mask.shape).masked_fill_(~mask, float("-inf"))
    for other in (mask, added):
        output = attend(name, q, k, v, launch.under(other), 0.125)
        assert torch.allclose(output[0].double(), plain(q[0], k[0], v[0], 30), atol=1e-5)
        assert torch.equal(output[1], expected[1])


def test_an_unknown_backend_is_named() -> None:
    """The error says which there are."""
    q, k, v, launch = made_up([4])
    with pytest.raises(BackendError, match=r"'fla'.*flash"):
        attend("fla", q, k, v, launch, 0.125)


def test_what_a_kernel_raises_is_a_backend_error() -> None:
    """Shapes that no kernel takes: the recovery ladder must be able to catch it."""
    q, k, v, launch = made_up([4])
    with pytest.raises(BackendError, match="backend sdpa raised"):
        attend("sdpa", q, k, v[..., :8, :4], launch, 0.125)
