"""The first story: told on the real model, and able to come out otherwise."""

import io

import pytest
from rich.console import Console

from tocsin.core.history import Event, EventKind
from tocsin.core.terms import Profile
from tocsin.ray_jobs import demo
from tocsin.ray_jobs.demo import STRUCK, Side, Told, is_as_told

RIGHT, EMPTY, REFUSED = Told(200, "x", True), Told(200, "", False), Told(500, "", False)


def sides() -> tuple[Side, Side]:
    """The story as it must be."""
    off = Side(Profile.OFF, [RIGHT] + [EMPTY] * 4, True, ["nan", "nan"])
    alarms = [Event(EventKind.CHECK_FAILED, 1, "demo")] * 2
    repaired = [Event(EventKind.PAGES_QUARANTINED, 1, "demo")]
    full = Side(Profile.FULL, [RIGHT] * 5, True, ["nan", "nan"], alarms + repaired)
    return off, full


def test_the_story_as_it_must_be_is_told() -> None:
    """Poison spreads without checks and touches nobody with them."""
    assert is_as_told(*sides())


@pytest.mark.parametrize("change", ["cured", "harm", "refused", "unseen", "kept", "dud", "sick"])
def test_a_story_that_came_out_otherwise_is_not_told_as_true(change: str) -> None:
    """The demo ends with 1 when any part of what it says is not so."""
    off, full = sides()
    if change == "cured":
        off.told[STRUCK + 1] = RIGHT
    if change == "harm":
        full.told[2] = EMPTY
    if change == "refused":
        full.told[STRUCK] = REFUSED
    if change == "unseen":
        full.events[:] = full.events[1:]
    if change == "kept":
        full.events.pop()
    if change == "dud":
        full.struck.pop()
    if change == "sick":
        off.healthy = False
    assert not is_as_told(off, full)


@pytest.mark.model
@pytest.mark.slow
def test_a_transient_nan_poisons_an_unchecked_server_and_no_checked_one() -> None:
    """On the real model, in one process, within a minute."""
    screen = Console(file=io.StringIO(), width=120)
    assert demo.tell(console=screen) == 0
    file = screen.file
    assert isinstance(file, io.StringIO)
    words = file.getvalue()
    assert "4 of 5 answers were wrong with HTTP 200, 0 alarms; health ok" in words
    assert "checks on: 0 of 5 answers were wrong" in words
    assert "quarantined, zeroed, verified" in words
