"""The operators of paged memory against the same written out with torch.

Axes: P pages · D layers · B page size · W = K*E values · R rows · n pages a row · L = n*B.
"""

import pytest
import torch
from torch import Tensor

from tocsin.checker import native
from tocsin.engine.word_sums import word_sums

pytestmark = pytest.mark.skipif(not native.available(), reason=native.reason())

OPS = torch.ops.tocsin
P, D, K, R = 7, 2, 2, 3
TABLE = torch.tensor([[3, 5], [1, 0], [6, 2]])


def pool(dtype: torch.dtype, size: int, width: int) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(P, D, 2, size, width, generator=generator).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("size", "width"), [(16, 64), (5, 24), (1, 8)])
def test_pages_are_read_as_they_are_and_each_change_is_counted(
    dtype: torch.dtype, size: int, width: int
) -> None:
    """Proves the copy bit for bit, and one count for each token row whose words changed."""
    data = pool(dtype, size, width)
    sums = word_sums(data)
    for depth in range(D):
        changed = torch.zeros(TABLE.shape, dtype=torch.int64)
        plain = OPS.read_pages(data, TABLE, depth, K)
        checked = OPS.read_pages(data, TABLE, depth, K, sums, changed)
        for half in (0, 1):
            expected = data[TABLE, depth, half].flatten(1, 2).unflatten(-1, (K, -1)).transpose(1, 2)
            assert torch.equal(plain[half], expected)
            assert torch.equal(checked[half], expected)
        assert not changed.any()
    data[5, 1, 1, size - 1, -2:].view(torch.uint8)[1] ^= 1
    for depth, count in ((0, 0), (1, 1)):
        changed = torch.zeros(TABLE.shape, dtype=torch.int64)
        OPS.read_pages(data, TABLE, depth, K, sums, changed)
        assert changed.tolist() == [[0, count], [0, 0], [0, 0]]


def test_memory_of_what_was_read_is_used_again_once_nobody_holds_it() -> None:
    """Proves that a tensor that is held keeps its values, and that the next step faults none in."""
    data = torch.randn(4, 1, 2, 64, 384)  # large enough that the system would take it back
    table = torch.arange(4).view(2, 2)
    first, held = OPS.read_pages(data, table, 0, K)
    view = held[:, 1:]
    places = {first.data_ptr(), held.data_ptr()}
    del held
    expected, before = view.clone(), first.clone()
    second = OPS.read_pages(data.neg(), table, 0, K)
    assert not places & {one.data_ptr() for one in second}
    assert torch.equal(view, expected)
    assert torch.equal(first, before)
    free = {one.data_ptr() for one in second}
    del second
    third = OPS.read_pages(data, table, 0, K)
    assert {one.data_ptr() for one in third} == free
    assert torch.equal(third[0], first)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rows_are_written_where_their_slots_say(dtype: torch.dtype) -> None:
    """Proves the layout, the sums of what was to be written, and that -1 writes nowhere."""
    data, before = pool(dtype, 4, 16), pool(dtype, 4, 16)
    sums = word_sums(data)
    written = torch.zeros((D, 2, 6, 16), dtype=dtype)
    key, value = (torch.randn(R, 2, K, 8).to(dtype).transpose(1, 2) for _ in range(2))
    slots = torch.tensor([5, 6, -1, 27, 0, 13])
    OPS.write_pages(data, sums, written, key, value, slots, 1)
    new = torch.stack([one.transpose(1, 2).reshape(6, 16) for one in (key, value)])
    assert torch.equal(written[1], new)
    assert not written[0].any()
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            before[slot // 4, 1, :, slot % 4] = new[:, token]
    assert torch.equal(data, before)
    assert torch.equal(sums, word_sums(before))


def states(rows: int, width: int, length: int) -> list[Tensor]:
    made = [torch.randn(D, rows, width, dtype=torch.float64)]
    made += [torch.randn(D, rows, width), torch.randn(D, rows, width)]
    return [*made, torch.rand(D, rows, K), torch.rand(2, D, rows, K, length)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_one_token_more_extends_the_state_of_its_row(dtype: torch.dtype) -> None:
    """Proves first token, later one and idle row; kept, the old states come back."""
    size, width = 4, 24
    pages, rows = states(P, width, size), states(R, width, 2 * size)
    written = torch.randn(D, 2, R, width).to(dtype)
    at = torch.tensor([4, -1, 0])  # its base lies on page 3; idle; nothing before
    OPS.note_written(written, pages, TABLE, at, rows, 0, D)
    key, value = written.float().unbind(1)
    torch.testing.assert_close(rows[0][:, 0], pages[0][:, 3] + key[:, 0].double())
    torch.testing.assert_close(rows[0][:, 2], key[:, 2].double())
    assert torch.equal(rows[1][:, 0], torch.minimum(pages[1][:, 3], value[:, 0]))
    assert torch.equal(rows[2][:, 0], torch.maximum(pages[2][:, 3], value[:, 0]))
    assert torch.equal(rows[1][:, 2], value[:, 2])
    norms = key.unflatten(-1, (K, -1)).norm(dim=-1)
    torch.testing.assert_close(rows[3][:, 0], torch.maximum(pages[3][:, 3], norms[:, 0]))
    assert not any(one[:, 1].any() for one in rows[:4])
    by_head = value.unflatten(-1, (K, -1))
    torch.testing.assert_close(rows[4][0, :, 0, :, 4], by_head.sum(-1)[:, 0])
    torch.testing.assert_close(rows[4][1, :, 2, :, 0], by_head.norm(dim=-1)[:, 2])
    assert torch.equal(rows[4][:, :, 0, :, :4], pages[4][:, :, 3])
    kept = [one.clone() for one in pages]
    old = OPS.keep_written(pages, TABLE, at, rows)
    for state, was, row, before in zip(pages[:4], kept, rows, old, strict=False):
        assert torch.equal(state[:, 5], row[:, 0])
        assert torch.equal(state[:, 6], row[:, 2])
        assert torch.equal(before[:, 0], was[:, 5])
        assert torch.equal(state[:, :5], was[:, :5])
    assert torch.equal(pages[4][:, :, 5, :, 0], rows[4][:, :, 0, :, 4])


def test_a_norm_beyond_the_squares_of_floats_is_still_one() -> None:
    """Proves 1e30 and 1e-30, whose squares are no floats, and that NaN and infinity stay."""
    pages, rows = states(P, 16, 4), states(R, 16, 8)
    pages[3].zero_()
    written = torch.zeros(D, 2, R, 16)
    for row, value in enumerate((1e30, 1e-30, torch.nan)):
        written[:, 0, row] = value
    OPS.note_written(written, pages, TABLE, torch.zeros(R, dtype=torch.int64), rows, 0, D)
    expected = torch.tensor([1e30, 1e-30]) * 8**0.5
    torch.testing.assert_close(rows[3][0, :2, 0], expected)
    assert rows[3][:, 2].isnan().all()


def test_what_does_not_fit_raises_before_anything_is_touched() -> None:
    """Proves that no operator leaves its memory, whatever a block table or a slot says."""
    data = pool(torch.float32, 4, 16)
    written, row = torch.zeros(D, 2, 1, 16), torch.zeros(1, K, 1, 8)
    with pytest.raises(IndexError):
        OPS.read_pages(data, torch.tensor([[P]]), 0, K)
    with pytest.raises(IndexError):
        OPS.read_pages(data, torch.tensor([[-1]]), 0, K)
    with pytest.raises(RuntimeError, match="depth 2"):
        OPS.read_pages(data, TABLE, D, K)
    with pytest.raises(RuntimeError, match="changed"):
        OPS.read_pages(data, TABLE, 0, K, word_sums(data), torch.zeros(1, 1, dtype=torch.int64))
    with pytest.raises(IndexError):
        OPS.write_pages(data, None, written, row, row, torch.tensor([P * 4]), 0)
    with pytest.raises(RuntimeError, match="new rows"):
        OPS.write_pages(data, None, written, row.double(), row, torch.tensor([0]), 0)
    pages, rows = states(P, 16, 4), states(R, 16, 8)
    wide = torch.zeros(D, 2, R, 16)
    with pytest.raises(IndexError):
        OPS.note_written(wide, pages, TABLE, torch.tensor([0, 8, 0]), rows, 0, D)
    with pytest.raises(RuntimeError, match="row_states"):
        OPS.keep_written(pages, TABLE, torch.zeros(R, dtype=torch.int64), pages)


@pytest.mark.parametrize("name", ["read_pages", "write_pages", "note_written", "keep_written"])
def test_the_schema_says_what_changes(name: str) -> None:
    """Proves the declared mutations against what each operator does."""
    data, written = pool(torch.float32, 4, 16), torch.randn(D, 2, R, 16)
    row, at = torch.randn(R, K, 1, 8), torch.tensor([4, -1, 0])
    pages, rows = states(P, 16, 4), states(R, 16, 8)
    changed = torch.zeros(TABLE.shape, dtype=torch.int64)
    arguments = {
        "read_pages": (data, TABLE, 0, K, word_sums(data), changed),
        "write_pages": (data, word_sums(data), written, row, row, torch.tensor([1, 2, 9]), 1),
        "note_written": (written, pages, TABLE, at, rows, 0, D),
        "keep_written": (pages, TABLE, at, rows),
    }
    torch.library.opcheck(getattr(OPS, name).default, arguments[name], test_utils=("test_schema",))
