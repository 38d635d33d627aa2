"""In decoding, what was found in the values is kept; in a prompt, drawn queries stand for all."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.checker.calls import DTYPES, attention, generator
from tests.checker.native.native_ratios import native_ratios
from tocsin.checker import native
from tocsin.checker.checks.numerical.attention_row_sum import attention_row_sum

ROW_SUM, HULL = 0, 1
ROWS, KV_HEADS, SIZE = 2, 2, 64


@pytest.fixture(autouse=True, scope="module")
def _built() -> None:
    if not native.available():
        pytest.skip(native.reason())


class Decoding:
    """Steps of one attention module of a model, checked into a verdict buffer of its own."""

    def __init__(self, keys: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> None:
        self.generator = generator(seed)
        self.buffer = torch.zeros(5, ROWS + 1)
        self.sites = torch.arange(5).reshape(5, 1)
        self.dtype = dtype
        self.k, self.v = self.draw(keys), self.draw(keys)

    def draw(self, keys: int) -> Tensor:
        shape = (ROWS, KV_HEADS, keys, SIZE)
        return torch.randn(shape, generator=self.generator).to(self.dtype)

    def grow(self, keys: int = 1) -> None:
        """What a cache does in a step: new tensors, one more key and value in each."""
        self.k = torch.cat((self.k, self.draw(keys)), dim=2)
        self.v = torch.cat((self.v, self.draw(keys)), dim=2)

    def attend(self, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """q_RH1E and what the kernel makes of it."""
        q = torch.randn(ROWS, 2 * KV_HEADS, 1, SIZE, generator=self.generator).to(self.dtype)
        return q, functional.scaled_dot_product_attention(
            q, self.k, self.v, attn_mask=mask, enable_gqa=True
        )

    def judge(self, q: Tensor, output: Tensor, mask: Tensor | None = None) -> Tensor:
        """Ratios [5, R] of this step."""
        self.buffer.zero_()
        masks = [] if mask is None else [mask]
        torch.ops.tocsin.attention_into(
            self.buffer, self.sites, ROWS, [q], [self.k], [self.v], [output], masks, [], []
        )
        return self.buffer[self.sites[:, 0], :ROWS]

    def step(self, mask: Tensor | None = None) -> Tensor:
        """A clean step."""
        return self.judge(*self.attend(mask), mask)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_steps_of_a_growing_cache_are_silent_and_a_wrong_output_is_seen(dtype: torch.dtype) -> None:
    """Proves 80 steps, beyond the room that was made for them, clean and hurt in turn."""
    decoding = Decoding(40, dtype)
    for step in range(80):
        assert bool((decoding.step() <= 1).all()), step
        q, output = decoding.attend()
        output[1, step % 4, 0, step % SIZE] += 2.0
        assert (decoding.judge(q, output)[ROW_SUM] > 1).tolist() == [False, True], step
        decoding.grow()


def test_values_that_were_looked_at_are_not_read_again() -> None:
    """Proves the saving: a value that changes after the kernel ran is not noticed, a new one is."""
    decoding = Decoding(48)
    decoding.step()
    decoding.grow()
    q, output = decoding.attend()
    decoding.v[:, :, 20] += 3.0
    assert bool((decoding.judge(q, output) <= 1).all())
    decoding.v[:, :, -1] += 30.0
    again = Decoding(48)
    again.step()
    again.grow()
    q, output = again.attend()
    again.v[:, :, -1] += 30.0
    assert bool((again.judge(q, output)[ROW_SUM] > 1).all())


def test_other_values_in_their_place_are_no_alarm() -> None:
    """Proves that nothing rests on the cache: new request, reordered rows, a shifted window."""
    decoding = Decoding(48)
    for _ in range(12):
        decoding.step()
        decoding.grow()
        decoding.v = decoding.v.flip(0).contiguous()  # beams change places
        assert bool((decoding.step() <= 1).all())
        decoding.v[:, :, 20] = decoding.draw(1)[:, :, 0]  # one place was written anew
        assert bool((decoding.step() <= 1).all())
        decoding.k, decoding.v = decoding.k[:, :, 1:].clone(), decoding.v[:, :, 1:].clone()
        assert bool((decoding.step() <= 1).all())
    decoding.k, decoding.v = decoding.draw(9), decoding.draw(9)
    assert bool((decoding.step() <= 1).all())
    q, output = decoding.attend()
    output[0, 0, 0, 3] += 0.5
    assert (decoding.judge(q, output)[ROW_SUM] > 1).tolist() == [True, False]


def test_places_of_a_fixed_cache_are_read_when_the_mask_first_shows_them() -> None:
    """Proves a static cache: garbage behind the mask, NaN too, until it is written."""
    decoding = Decoding(40)
    decoding.v[:, :, 24:] = torch.nan
    for length in range(24, 40):
        decoding.v[:, :, length] = decoding.draw(1)[:, :, 0]
        mask = (torch.arange(40) <= length).expand(ROWS, 1, 1, 40)
        q, output = decoding.attend(mask)
        output = functional.scaled_dot_product_attention(
            q, decoding.k, decoding.v.nan_to_num(), attn_mask=mask, enable_gqa=True
        )
        assert bool((decoding.judge(q, output, mask) <= 1).all()), length
        output[0, 0, 0, 0] = -output[0, 0, 0, 0] + 1.0
        assert bool((decoding.judge(q, output, mask)[ROW_SUM, 0] > 1).all()), length


def test_the_hull_grows_with_new_values_and_no_further() -> None:
    """Proves that kept bounds are those of all values: a new extreme is inside, beyond is not."""
    decoding = Decoding(48)
    decoding.step()
    decoding.grow()
    decoding.v[:, :, -1] = 50.0
    decoding.k[:, :, -1] *= 40.0
    q, output = decoding.attend()
    assert bool((decoding.judge(q, output)[HULL] <= 1).all())
    output[1, 0, 0, 5] = 51.0
    assert (decoding.judge(q, output)[HULL] > 1).tolist() == [False, True]


def test_two_modules_of_a_buffer_do_not_share_what_is_kept() -> None:
    """Proves that lines of the buffer tell calls apart: each has its own sums at its next step."""
    first, second = Decoding(48, seed=1), Decoding(48, seed=2)
    second.buffer = first.buffer = torch.zeros(10, ROWS + 1)
    second.sites = first.sites + 5
    first.step()
    second.step()
    for decoding in (first, second):
        q, output = decoding.attend()
        decoding.v[:, :, 20] += 3.0  # kept sums do not notice; read anew they would
        assert bool((decoding.judge(q, output) <= 1).all())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_of_a_long_prompt_both_look_at_the_same_queries(dtype: torch.dtype) -> None:
    """Proves that C++ draws as Python does, the last query always, others for another prompt."""
    looked = []
    for seed in range(3):
        call = attention(generator(seed), dtype, (160, 160), causal=True, size=64)
        assert call.output is not None
        assert not native_ratios(call)["numerical.attention_row_sum"].gt(1).any()
        call.output = call.output + 1.0
        found = native_ratios(call)["numerical.attention_row_sum"] > 1
        assert torch.equal(attention_row_sum(call) > 1, found)
        assert bool(found.view(-1, 160)[:, -1].all())
        assert int(found.view(-1, 160)[0].sum()) == 64
        looked.append(found)
    assert not torch.equal(looked[0], looked[1])
    assert not torch.equal(looked[1], looked[2])
