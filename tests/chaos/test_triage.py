"""Divergences by class, at the borders between the classes."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.fake_system import golden_answer
from tocsin.chaos.triage import (
    Category,
    ForeignIndex,
    first_difference,
    is_prefix,
    triage,
)

GOLDEN = replace(
    golden_answer("a", 8),
    tokens=(10, 11, 12, 13, 14, 15, 16, 17),
    margins=(1.0, 1.0, 0.001, 1.0, 1.0, 1.0, 1.0, 1.0),
)
OTHER = replace(golden_answer("b", 8), tokens=(20, 21, 22, 23, 24, 25, 26, 27))
FOREIGN = ForeignIndex({"a": GOLDEN, "b": OTHER})


@pytest.mark.parametrize(
    ("tokens", "finish", "category", "first"),
    [
        (GOLDEN.tokens, "length", Category.EQUAL, -1),
        (GOLDEN.tokens, "", Category.EQUAL, -1),
        (GOLDEN.tokens, "stop", Category.STRUCTURAL, 8),
        ((), "length", Category.STRUCTURAL, 0),
        (GOLDEN.tokens[:5], "length", Category.STRUCTURAL, 5),
        ((*GOLDEN.tokens, 18), "length", Category.STRUCTURAL, 8),
        ((10, 11, 99, 98, 97, 96, 95, 94), "length", Category.TIE_FLIP, 2),
        ((10, 11, 12, 98, 97, 96, 95, 94), "length", Category.CONFIDENT_FLIP, 3),
        ((10, 11, 0, 0, 0, 0, 0, 0), "length", Category.STRUCTURAL, 2),
        ((10, 11, 13, 14, 15, 16, 17), "length", Category.STRUCTURAL, 2),
        ((10, 11, 11, 12, 13, 14, 15, 16), "length", Category.STRUCTURAL, 2),
        ((10, 11, 12, 14, 13, 15, 16, 17), "length", Category.STRUCTURAL, 3),
        ((10, 11, 12, 20, 21, 22, 23, 90), "length", Category.FOREIGN, 3),
        (OTHER.tokens, "length", Category.FOREIGN, 0),
        ((10, 11, 12, 20, 21, 22, 90, 91), "length", Category.CONFIDENT_FLIP, 3),
    ],
)
def test_every_class_has_its_example(
    tokens: tuple[int, ...], finish: str, category: Category, first: int
) -> None:
    """tau is 0.001: the margin at index 2 is just a tie."""
    found = triage(tokens, finish, GOLDEN, FOREIGN, 0.001)
    assert (found.category, found.first_index) == (category, first)
    assert found.detail or category is Category.EQUAL


def test_a_loop_is_structural_unless_golden_loops_too() -> None:
    """Eight times the same token."""
    looping = (10, 11, 12, *([77] * 8))
    longer = replace(GOLDEN, tokens=(*GOLDEN.tokens, 18, 19, 30))
    assert triage(looping, "", longer, FOREIGN, 0.0).category is Category.STRUCTURAL


def test_a_run_that_two_prompts_share_belongs_to_nobody() -> None:
    """Common phrases are no leak."""
    third = replace(OTHER, prompt_id="c")
    index = ForeignIndex({"a": GOLDEN, "b": OTHER, "c": third})
    assert index.owner(OTHER.tokens, "a") == ""


@given(st.lists(st.integers(0, 3), max_size=6), st.lists(st.integers(0, 3), max_size=6))
def test_first_difference_and_prefix_say_what_slices_say(
    ours: list[int], theirs: list[int]
) -> None:
    """Checked against the plain definition."""
    first = first_difference(ours, theirs)
    if first < 0:
        assert ours == theirs
    else:
        assert ours[:first] == theirs[:first]
        assert ours[first : first + 1] != theirs[first : first + 1]
    assert is_prefix(ours, theirs) == (theirs[: len(ours)] == ours)
