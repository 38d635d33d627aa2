"""Delta debugging finds parts from which nothing can be taken, and asks only for real parts."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from tocsin.ray_jobs.sim.ddmin import least, minimal_part

items = st.lists(st.integers(0, 50), unique=True, min_size=1, max_size=14)


@given(items, st.data())
def test_what_fails_together_is_found_and_nothing_else(all_of: list[int], data: st.DataObject):
    """With a failure that needs a whole set, the part is that set in its order."""
    needed = set(data.draw(st.lists(st.sampled_from(all_of), unique=True)))
    found = minimal_part(all_of, lambda part: needed <= set(part))
    assert found == [one for one in all_of if one in needed]


@given(items, st.sets(st.frozensets(st.integers(0, 50), max_size=3), min_size=1, max_size=4))
def test_a_part_of_any_failure_is_minimal(all_of: list[int], causes: set[frozenset[int]]):
    """Also where several sets fail: no item can be taken from the part that is found."""

    def fails(part: Sequence[int]) -> bool:
        return len(part) == len(all_of) or any(cause <= set(part) for cause in causes)

    found = minimal_part(all_of, fails)
    assert fails(found)
    assert not any(fails([*found[:i], *found[i + 1 :]]) for i in range(len(found)))


@given(st.integers(1, 500), st.integers(1, 500))
def test_the_least_number_that_fails_is_found(limit: int, more: int):
    """It is the limit itself, however far above it the search begins."""
    assert least(limit + more, lambda value: value >= limit) == limit


def test_few_questions_are_asked_of_many_items():
    """One item of a thousand takes two dozen questions, not a thousand."""
    asked: list[int] = []

    def fails(part: Sequence[int]) -> bool:
        asked.append(len(part))
        return 711 in part

    assert minimal_part(range(1000), fails) == [711]
    assert len(asked) < 30
