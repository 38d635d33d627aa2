"""Weight sums see every flipped bit, name its tile, and the cold copy brings the bits back."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tocsin.checker.weights import Tile, WeightStore
from tocsin.core.errors import HealError

Build = Callable[..., nn.Module]


def flip(tensor: torch.Tensor, byte: int, bit: int) -> None:
    """Flip one bit of a tensor's memory."""
    with torch.no_grad():
        view = tensor.detach().view(-1).view(torch.uint8)
        view[byte] ^= 1 << bit


class Odd(nn.Module):
    """Tensors whose bytes are no multiple of eight, one of them not aligned, one empty."""

    def __init__(self) -> None:
        super().__init__()
        base = torch.arange(40, dtype=torch.bfloat16)
        self.odd = nn.Parameter(torch.randn(7, dtype=torch.float32))
        self.short = nn.Parameter(base[1:14])
        self.empty = nn.Parameter(torch.zeros(0, 3))
        self.transposed = nn.Parameter(torch.randn(6, 5).T)
        self.register_buffer("table", torch.rand(33, dtype=torch.float64))
        self.register_buffer("counts", torch.arange(3))


@given(
    name=st.sampled_from(["odd", "short", "table"]),
    place=st.integers(0, 10**6),
    bit=st.integers(0, 7),
)
def test_every_single_flip_is_seen_and_repaired(name: str, place: int, bit: int) -> None:
    """Proves 100 % of single-bit flips, of any byte of any tensor, the unaligned rest included."""
    model = Odd()
    store = WeightStore(model, tile_bytes=16)
    tensor = getattr(model, name)
    true = tensor.detach().clone()
    byte = place % (tensor.numel() * tensor.element_size())
    flip(tensor, byte, bit)
    assert store.verify() == (Tile(name, byte // 16),)
    store.repair(Tile(name, byte // 16))
    assert store.verify() == ()
    assert torch.equal(tensor, true)


@pytest.mark.parametrize(("first", "second"), [(0, 1), (2, 1023), (511, 512)])
def test_two_words_that_change_places_are_seen(first: int, second: int) -> None:
    """Proves that the sum knows where in its tile a word stands."""
    model = nn.Linear(64, 32, bias=False)
    store = WeightStore(model)
    words = model.weight.detach().view(-1).view(torch.int64)
    assert len(words) == 1024
    words[[first, second]] = words[[second, first]].clone()
    assert store.verify() == (Tile("weight", 0),)
    store.repair(Tile("weight", 0))
    assert store.verify() == ()


def test_a_tensor_that_is_not_contiguous_is_repaired_whole() -> None:
    """Proves that a transposed parameter is summed and repaired too."""
    model = Odd()
    store = WeightStore(model, tile_bytes=16)
    true = model.transposed.detach().clone()
    with torch.no_grad():
        model.transposed[2, 3] += 1
    bad = store.verify()
    assert len(bad) == 1
    store.repair(bad[0])
    assert torch.equal(model.transposed, true)


def test_rotary_frequencies_and_norm_weights_are_weights(family_model: Build) -> None:
    """Proves that the buffers which no checkpoint holds are watched."""
    model = family_model("llama")
    store = WeightStore(model)
    with torch.no_grad():
        model.get_submodule("model.rotary_emb").inv_freq[2] *= 4
        model.get_submodule("model.norm").weight[5] = -1
    assert {tile.tensor for tile in store.verify()} == {
        "model.rotary_emb.inv_freq",
        "model.norm.weight",
    }


def test_a_round_of_scrubs_looks_at_every_tile_once(family_model: Build) -> None:
    """Proves the round robin: each tile within one round, a changed one among them."""
    model = family_model("llama")
    store = WeightStore(model, tile_bytes=4096)
    flip(model.get_submodule("model.layers.2.mlp.down_proj").weight, 5, 3)
    seen: list[Tile] = []
    wrong: list[Tile] = []
    while len(seen) < store.tiles:
        tiles, sums, expected = store.scrub(4096 * 7)
        assert sums.dtype == torch.int64
        seen += tiles
        wrong += [tiles[i] for i in (sums != expected).nonzero().flatten().tolist()]
    assert set(seen[: store.tiles]) == {*seen}
    assert wrong == [Tile("model.layers.2.mlp.down_proj.weight", 0)]


def test_the_cold_copy_may_be_the_file_that_was_loaded(family_model: Build, tmp_path: Path) -> None:
    """Proves repair from safetensors; what the file lacks is kept in memory."""
    from safetensors.torch import save_file

    model = family_model("llama")
    path = tmp_path / "model.safetensors"
    save_file({k: v.contiguous() for k, v in model.state_dict().items()}, path)
    store = WeightStore(model, files=[path], tile_bytes=4096)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    weight = model.get_submodule("model.layers.1.self_attn.q_proj").weight
    frequency = model.get_submodule("model.rotary_emb").inv_freq
    true = frequency.clone()
    flip(weight, 9000, 6)
    with torch.no_grad():
        frequency[0] = 7
    for tile in store.verify():
        store.repair(tile)
    assert store.verify() == ()
    assert all(torch.equal(model.state_dict()[key], value) for key, value in before.items())
    assert torch.equal(frequency, true)


def test_a_repair_that_does_not_help_is_an_error(family_model: Build, tmp_path: Path) -> None:
    """Proves that a wrong cold copy is not taken for the truth."""
    from safetensors.torch import load_file, save_file

    model = family_model("llama")
    path = tmp_path / "model.safetensors"
    save_file({k: v.contiguous() for k, v in model.state_dict().items()}, path)
    store = WeightStore(model, files=[path])
    rotten = load_file(path)
    rotten["model.norm.weight"][3] += 1
    save_file(rotten, path)
    flip(model.get_submodule("model.norm").weight, 0, 0)
    (tile,) = store.verify()
    with pytest.raises(HealError, match=r"model\.norm\.weight\[tile 0\].*restart the replica"):
        store.repair(tile)


def test_tied_weights_are_summed_once() -> None:
    """Proves that a tied head does not count twice."""
    model = nn.Sequential(nn.Embedding(16, 8), nn.Linear(8, 16, bias=False))
    model[1].weight = model[0].weight
    assert WeightStore(model, tile_bytes=1024).tiles == 1


@pytest.mark.parametrize("tile_bytes", [0, -8, 12])
def test_a_tile_is_a_whole_number_of_words(tile_bytes: int) -> None:
    """Proves that a wrong tile size is refused."""
    with pytest.raises(ValueError, match="multiple of 8"):
        WeightStore(nn.Linear(2, 2), tile_bytes=tile_bytes)
