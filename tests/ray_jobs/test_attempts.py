"""Two attempts of one request never meet under one name."""

import pytest

from tocsin.ray_jobs.attempts import free_name, named, own_id


@pytest.mark.parametrize(
    ("name", "taken", "expected"),
    [
        ("r1", (), "r1"),
        ("r1", ("r1",), "r1#1"),
        ("r1", ("r1", "r1#1"), "r1#2"),
        ("r1#2", ("r1", "r1#1"), "r1#2"),
        ("r1#2", ("r1#2",), "r1#3"),
        ("a#b", ("a#b",), "a#b#1"),
    ],
)
def test_the_next_free_name_belongs_to_the_same_request(
    name: str, taken: tuple[str, ...], expected: str
) -> None:
    """Numbers go on, and only a number at the end is one."""
    found = free_name(name, taken)
    assert found == expected
    assert own_id(found) == own_id(name)


def test_the_first_attempt_has_the_requests_own_name() -> None:
    """What nobody resumes reads in logs as the client wrote it."""
    assert [named("r1", attempt) for attempt in range(3)] == ["r1", "r1#1", "r1#2"]
