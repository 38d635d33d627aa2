"""Foreign text is found in many answers at once as in one, for any size of vocabulary."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.chaos.scale import grams
from tocsin.chaos.scale.golden import GoldenTable
from tocsin.chaos.scale.grams import ForeignKeys
from tocsin.chaos.triage import ForeignIndex
from tocsin.core.system import GoldenAnswer

SMALL = st.lists(st.integers(0, 3), max_size=9)


def golden_set(answers: list[list[int]], scale: int) -> dict[str, GoldenAnswer]:
    return {
        f"p{i}": GoldenAnswer(f"p{i}", tuple(t * scale for t in tokens), (), (), "", "stop")
        for i, tokens in enumerate(answers)
    }


def agree(golden: dict[str, GoldenAnswer], received: list[tuple[int, ...]]) -> None:
    table, index = GoldenTable(golden), ForeignIndex(golden)
    ranks = [i % len(golden) for i in range(len(received))]
    found = ForeignKeys(table).owners(
        np.array([t for one in received for t in one], np.int64),
        np.array([len(one) for one in received], np.int64),
        np.array(ranks, np.int64),
    )
    theirs = [index.owner(one, table.names[r]) for one, r in zip(received, ranks, strict=True)]
    assert [table.names[owner] if owner >= 0 else "" for owner in found] == theirs


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    answers=st.lists(SMALL, min_size=1, max_size=4),
    received=st.lists(SMALL, max_size=6),
    scale=st.sampled_from([1, 21_000, 1 << 33]),
)
def test_owners_are_those_of_the_index_for_one_answer(
    answers: list[list[int]], received: list[list[int]], scale: int
) -> None:
    agree(golden_set(answers, scale), [tuple(t * scale for t in one) for one in received])


def test_runs_whose_hashes_are_equal_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grams, "_BASE", 1)  # any order of the same tokens has one key
    wide = 1 << 20
    golden = golden_set([[1, 2, 3, 4], [4, 3, 2, 1], [1, 3, 2, 4]], wide)
    runs = ([4, 3, 2, 1], [1, 3, 2, 4], [1, 2, 3, 4], [2, 1, 3, 4])
    agree(golden, [tuple(t * wide for t in run) for run in runs])
