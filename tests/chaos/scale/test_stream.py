"""The online check knows exactly what arrived, and keeps nothing of what was right."""

import dataclasses
from zlib import crc32

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.chaos.fake_system import golden_answer
from tests.chaos.scale.histories import chunk_sins, golden_record
from tocsin.chaos.scale.golden import token_bytes
from tocsin.chaos.scale.rows import AFTER_END, INDEX, NONE, TEXT
from tocsin.chaos.scale.stream import StreamCheck
from tocsin.core.history import Chunk
from tocsin.core.system import GoldenAnswer

GOLDEN = golden_answer("p0", 6)


def watched(golden: GoldenAnswer | None, chunks: list[Chunk]) -> StreamCheck:
    check = StreamCheck(golden)
    for chunk in chunks:
        check.token(chunk.index, chunk.token, chunk.text, chunk.t_ns)
    return check


def small(token: int = 3) -> GoldenAnswer:
    tokens = (1, 2, token, 2, 1)
    text = "".join(f" {one}" for one in tokens)
    return GoldenAnswer("p0", tokens, (), tokens, text, "stop")


def test_a_golden_answer_leaves_nothing_behind() -> None:
    check = watched(small(), golden_record(0, small()).chunks)
    assert (check.flags, check.first_divergence, check.count) == (0, NONE, 5)
    assert check.crc == crc32(token_bytes(small().tokens))
    assert check._kept is None
    assert check.adds_up(" 1 2 3 2 1")
    assert not check.adds_up(" 1 2 3 2")


@settings(max_examples=40, deadline=None, derandomize=True)
@given(data=st.data())
def test_what_arrived_is_known_exactly_whatever_was_wrong(data: st.DataObject) -> None:
    golden = small()
    chunks = golden_record(0, golden).chunks
    for _ in range(data.draw(st.integers(0, 3))):
        chunks = data.draw(chunk_sins(chunks))
    check = watched(golden, chunks)
    found = check.chunks()
    assert [(c.index, c.token) for c in found] == [(c.index, c.token) for c in chunks]
    assert "".join(c.text for c in found) == "".join(c.text for c in chunks)
    assert [c.t_ns for c in found[-1:]] == [c.t_ns for c in chunks[-1:]]
    assert check.crc == crc32(token_bytes([c.token for c in chunks]))
    first = next((i for i, c in enumerate(chunks) if i >= 5 or c.token != golden.tokens[i]), NONE)
    assert check.first_divergence == first
    assert bool(check.flags & INDEX) == any(c.index != i for i, c in enumerate(chunks))
    text = "".join(c.text for c in chunks)
    assert bool(check.flags & TEXT) == (not golden.text.startswith(text))


def test_tokens_that_arrive_together_are_checked_like_single_ones() -> None:
    single = watched(small(), golden_record(0, small(9)).chunks)
    together = StreamCheck(small())
    together.tokens(0, (1, 2), " 1 2", 1)
    together.tokens(2, [9, 2, 1], " 9 2 1", 2)
    for name in ("count", "crc", "flags", "first_divergence"):
        assert getattr(single, name) == getattr(together, name)
    assert [c.token for c in together.chunks()] == [1, 2, 9, 2, 1]


def test_nothing_may_follow_the_end() -> None:
    check = watched(small(), golden_record(0, small()).chunks[:2])
    check.end()
    check.token(2, 3, " 3", 99)
    assert check.flags == AFTER_END
    assert [dataclasses.astuple(c) for c in check.chunks()][-1] == (99, 2, 3, " 3")


def test_without_a_golden_answer_everything_is_kept() -> None:
    chunks = golden_record(0, small()).chunks
    assert watched(None, chunks).chunks() == chunks


def test_a_token_that_is_no_token_id_is_recorded_and_not_golden() -> None:
    check = watched(small(), [Chunk(1, 0, -1, ""), Chunk(2, 1, 1 << 40, "")])
    assert check.first_divergence == 0
    assert [c.token for c in check.chunks()] == [-1, 1 << 40]
